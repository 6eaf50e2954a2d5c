"""The level `namespaces`, where programs have files to write, and the test that it holds here."""

from dataclasses import replace

from extensions.programs.boxes import DISK, DISK_BYTES, GIVEN
from extensions.programs.messages import Box, ProgramSetup
from extensions.programs.pool import Programs
from pipelinerl.judging.isolation import Level, Limits
from pipelinerl.judging.isolation.selftest import PROGRAMS
from pipelinerl.judging.template import TemplateError, WorkerLostError

CPU_S = 10.0  # of the trials
LIMITS = Limits(memory_bytes=1 << 30, cpu_s=int(CPU_S))
OUTPUT_BYTES = 1 << 16
INNOCENT = b"""import tempfile
with tempfile.TemporaryFile("w+") as file:
    file.write(input())
    file.seek(0)
    print(file.read())
"""
# Of what `sealed` stops. In a box they reach nothing of others, and a change of a mode does nothing.
HARMLESS = ("write in /tmp", "execute a program", "change a file's mode")
CHANGES = """import os
before = os.stat("/dev/null").st_mtime_ns
os.utime("/dev/null", ns=(before, before + 1))
1 / (os.stat("/dev/null").st_mtime_ns - before)
"""
HOSTILE = {name: text for name, text in PROGRAMS.items() if name not in HARMLESS} | {
    "see processes": "import os; os.listdir('/proc')",
    "write elsewhere": f"open('{GIVEN}/made', 'w')",
    "change a device": CHANGES,
    "mount": f"import ctypes; ctypes.CDLL(None).mount(b'none', b'{DISK}', b'tmpfs', 0, None) and 1 / 0",
    "make namespaces": "import ctypes; ctypes.CDLL(None).unshare(0x10000000) and 1 / 0",
    "fill the disk": f"for n in '12': open('{DISK}/' + n, 'wb').write(bytes({DISK_BYTES * 3 // 4}))",
}
TRIALS = f"""names = {{"secret": "/etc/passwd", "parent": 2}}
for name, text in {HOSTILE!r}.items():
    try:
        exec(text, names)
        print(name)
    except (Exception, SystemExit):
        pass
"""


def setup_of(box: Box, limits: Limits, wall_s: float) -> ProgramSetup:
    """Returns the setup of a template whose programs run in boxes."""
    return ProgramSetup(Level.SEALED, replace(limits, file_bytes=DISK_BYTES), wall_s, box)


async def check() -> None:
    """Tries innocent and hostile programs of Python. Raises TemplateError if the level does not hold here."""
    programs = Programs(setup_of(Box.PYTHON, LIMITS, CPU_S), CPU_S, OUTPUT_BYTES)
    try:
        await programs.start(INNOCENT)
        tried = await programs.run(TRIALS.encode(), None, b"")
    except WorkerLostError as error:
        raise TemplateError(str(error)) from error
    finally:
        await programs.close()
    if not tried.is_fine:
        raise TemplateError("hostile programs could not be tried")
    if through := tried.output.decode().splitlines():
        raise TemplateError(f"hostile programs could: {', '.join(through)}")
