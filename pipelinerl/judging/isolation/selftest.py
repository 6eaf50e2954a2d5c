"""Runs twelve hostile programs at level `sealed`, and reports those that were not stopped.

The judging service calls it at its start. `python -m pipelinerl.judging.isolation.selftest PATH ...` prints
the reason why the level is not available, or "", as JSON. The kernel's version is not enough to decide that,
because a container's profile may disable its features.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipelinerl.judging.isolation.confinement import Confinement, Level
from pipelinerl.judging.isolation.environment import clean_environment, close_all_but
from pipelinerl.judging.isolation.limits import Limits

LIMITS = Limits(memory_bytes=1 << 28, cpu_s=5)
PATIENCE_S = 60
ENDED = 0
REFUSED = 3
NOT_CONFINED = 4
# A program that ends without an error has broken the isolation. `secret` is the path of a file that a worker
# must not read; `parent` is the id of a process that it must not access.
PROGRAMS = {
    "read a file": "open(secret).read()",
    "read the parent's environment": "open(f'/proc/{parent}/environ').read()",
    "write beside a file": "open(secret + '.made', 'w')",
    "write in /tmp": "import tempfile; tempfile.NamedTemporaryFile()",
    "change a file's mode": "import os; os.chmod(secret, 0o777)",
    "open a TCP socket": "import socket; socket.create_connection(('127.0.0.1', 9))",
    "open a datagram socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "start a process": "import os; os.fork() or os._exit(0)",
    "execute a program": "import os; os.execv('/bin/true', ['/bin/true'])",
    "signal the parent": "import os; os.kill(parent, 0)",
    "trace the parent": (
        "import ctypes, os\n"
        "if ctypes.CDLL(None, use_errno=True).ptrace(0x4206, parent, 0, 0) < 0:\n"
        "    raise OSError(ctypes.get_errno(), 'ptrace')"
    ),
    "make a file in memory": "import os; os.memfd_create('made')",
}
INNOCENT = "import os; assert eval('sum(range(10))') == 45; open(os.__file__).close()"


def strongest_level(readable: Sequence[str]) -> tuple[Level, str]:
    """Returns the strongest level that stops the hostile programs, and the reason why it is not stronger."""
    command = [sys.executable, "-m", "pipelinerl.judging.isolation.selftest", *readable]
    try:
        done = subprocess.run(
            command, env=clean_environment({}), capture_output=True, text=True, timeout=PATIENCE_S
        )
        reason = json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()[-200:]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = f"the self-test failed: {error}"
    return (Level.PROCESS, reason) if reason else (Level.SEALED, "")


def why_not_sealed(readable: Sequence[str]) -> str:
    """Returns the reason why `sealed` fails in children of this process, or "" if it stops all programs."""
    try:
        confinement = Confinement(Level.SEALED, LIMITS, readable)
    except OSError as error:
        return error.strerror or str(error)
    with tempfile.TemporaryDirectory() as directory:
        secret = Path(directory) / "secret"
        secret.write_text("secret")
        if (code := outcome(confinement, INNOCENT, str(secret))) != ENDED:
            return "the level cannot be entered" if code == NOT_CONFINED else "a harmless program failed"
        through = [
            name for name, text in PROGRAMS.items() if outcome(confinement, text, str(secret)) == ENDED
        ]
    return f"hostile programs could: {', '.join(through)}" if through else ""


def outcome(confinement: Confinement, program: str, secret: str) -> int:
    """Returns the exit status of a child that confines itself and runs the program."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        _run(confinement, program, {"secret": secret, "parent": parent})
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _run(confinement: Confinement, program: str, names: dict[str, object]) -> None:
    """Runs the program under the confinement, then exits. Does not return."""
    code = NOT_CONFINED
    try:
        signal.alarm(int(LIMITS.cpu_s or 0))
        close_all_but({0, 1, 2, *confinement.descriptors})
        confinement.enter()
        code = REFUSED
        exec(program, names)
        code = ENDED
    finally:
        os._exit(code)


if __name__ == "__main__":
    print(json.dumps(why_not_sealed(sys.argv[1:])))
