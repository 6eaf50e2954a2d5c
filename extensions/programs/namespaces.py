"""The level `namespaces`, where programs of Python have files to write, and the test that it holds here."""

from dataclasses import replace

from extensions.programs.boxes import DISK, DISK_BYTES, GIVEN
from extensions.programs.messages import Box, ProgramSetup
from extensions.programs.pool import Programs, Ran
from pipelinerl.judging.isolation import Level, Limits
from pipelinerl.judging.isolation.selftest import PROGRAMS
from pipelinerl.judging.template import TemplateError, WorkerLostError

INNOCENT = b"""import tempfile
with tempfile.TemporaryFile("w+") as file:
    file.write(input())
    file.seek(0)
    print(file.read())
"""
HARMLESS = ("write in /tmp", "execute a program")  # of what `sealed` stops; here they reach nothing of others
HOSTILE = {name: text for name, text in PROGRAMS.items() if name not in HARMLESS} | {
    "see processes": "import os; os.listdir('/proc')",
    "write elsewhere": f"open('{GIVEN}/made', 'w')",
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


async def started(limits: Limits, cpu_s: float, output_bytes: int) -> Programs:
    """Returns a pool for programs of Python. Raises TemplateError if the level does not hold here."""
    programs = Programs(setup_of(Box.PYTHON, limits, cpu_s), cpu_s, output_bytes)
    try:
        await programs.start(INNOCENT)
        tried = await programs.run(TRIALS.encode(), None, b"")
        if why_not := _why_not(tried):
            raise TemplateError(why_not)
    except WorkerLostError as error:
        await programs.close()
        raise TemplateError(str(error)) from error
    except BaseException:
        await programs.close()
        raise
    return programs


def _why_not(tried: Ran) -> str:
    if not tried.is_fine:
        return "the level's hostile programs could not be tried"
    through = tried.output.decode().splitlines()
    return f"hostile programs could: {', '.join(through)}" if through else ""
