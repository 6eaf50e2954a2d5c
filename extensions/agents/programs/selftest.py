"""Runs some thirty hostile programs at the level `fenced`, and reports those that were not stopped.

`python -m extensions.agents.programs.selftest LIMITS` prints the reason why it is not available, or "".
"""

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from extensions.agents.programs.fence import Fence, is_python
from extensions.agents.programs.messages import AgentLimits
from pipelinerl.judging.isolation import clean_environment
from pipelinerl.judging.isolation.selftest import ENDED, outcome

PATIENCE_S = 60
SYSCALL = (
    "import ctypes, os\n"
    "if ctypes.CDLL(None, use_errno=True).syscall({}) < 0:\n"
    "    raise OSError(ctypes.get_errno(), 'refused')"
)
# A program that ends without an error has broken the fence. It must not read the file `secret`, reach the
# process `parent`, or connect to the port `other`; `own` is its directory.
PROGRAMS = {
    "read a file": "open(secret).read()",
    "read /etc/shadow": "open('/etc/shadow').read()",
    "read by a link": "import os; os.symlink(secret, own + '/link'); open(own + '/link').read()",
    "link a file": "import os; os.link(secret, own + '/hard')",
    "write a file": "open(secret, 'a')",
    "write beside a file": "open(secret + '.made', 'w')",
    "remove a file": "import os; os.unlink(secret)",
    "move a file": "import os; os.rename(secret, own + '/moved')",
    "list a directory": "import os; os.listdir(os.path.dirname(secret))",
    "read the parent's environment": "open(f'/proc/{parent}/environ').read()",
    "connect to another port": "import socket; socket.create_connection(('127.0.0.1', other))",
    "connect by another protocol": "import socket; socket.socket(2, 1, 262).connect(('127.0.0.1', other))",
    "connect by a send": ("import socket; socket.socket().sendto(b'x', 0x20000000, ('127.0.0.1', other))"),
    "listen": "import socket; socket.create_server(('127.0.0.1', 0))",
    "listen without an address": "import socket; socket.socket().listen()",
    "watch a directory": SYSCALL.format("254, ctypes.CDLL(None).inotify_init(), b'/tmp', 0x100"),
    "close the directory above": "import os, stat; os.chmod(above, 0o755); assert os.stat(above).st_mode & 4",
    "grow memory that is not counted": SYSCALL.format("9, 0, 1 << 20, 3, 0x122, -1, 0"),
    "share memory": SYSCALL.format("29, 0, 4096, 0o1666"),
    "limit the parent": "import resource; resource.prlimit(parent, resource.RLIMIT_CPU, (1000, 1000))",
    "move the parent to a processor": "import os; os.sched_setaffinity(parent, {0})",
    "send a datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "open a Unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "signal the parent": "import os; os.kill(parent, 0)",
    "trace the parent": SYSCALL.format("101, 0x4206, parent, 0, 0"),
    "make namespaces": SYSCALL.format("272, 0x10000000"),
    "mount": SYSCALL.format("165, b'none', own.encode(), b'tmpfs', 0, None"),
    "read keys": SYSCALL.format("250, 0, 0xFFFFFFFD, 0"),
    "make a device": "import os, stat; os.mknod(own + '/device', stat.S_IFCHR | 0o600, os.makedev(1, 3))",
}
INNOCENT = """
import os, socket, subprocess, sys
open(own + '/file', 'w').write('text')
read = [sys.executable, '-c', 'print(open("file").read())']
assert subprocess.run(read, cwd=own, capture_output=True).stdout
socket.create_connection(('127.0.0.1', port)).close()
"""


def why_not_fenced(limits: AgentLimits) -> str:
    """Returns the reason why `fenced` is not available on this machine, or "" if it is."""
    command = [sys.executable, "-m", __name__, json.dumps([limits.memory_bytes, limits.disk_bytes])]
    try:
        done = subprocess.run(
            command, env=clean_environment({}), capture_output=True, text=True, timeout=PATIENCE_S
        )
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()[-200:]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"the self-test failed: {error}"


class Entered:
    """The fence as what `outcome` confines a child by."""

    descriptors: set[int] = set()

    def __init__(self, fence: Fence, own: str, port: int):
        self._fence = fence
        self._own = own
        self._port = port

    def enter(self) -> None:
        self._fence.enter(self._own, self._port)


def through(limits: AgentLimits) -> str:
    """Returns the reason why the fence does not hold in children of this process, or "" if it does."""
    prefixes = {
        sys.prefix,
        sys.base_prefix,
        *(str(p) for p in [Path(sys.executable).parent.parent] if is_python(p)),
    }
    try:
        fence = Fence(True, limits, sorted(prefixes))
    except OSError as error:
        return error.strerror or str(error)
    with (
        tempfile.TemporaryDirectory() as directory,
        tempfile.TemporaryDirectory() as own,
        socket.create_server(("127.0.0.1", 0)) as endpoint,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        secret = Path(directory) / "secret"
        secret.write_text("secret")
        port = endpoint.getsockname()[1]
        entered = Entered(fence, own, port)
        begin = f"own = {own!r}; above = {directory!r}; port = {port}; other = {other.getsockname()[1]}\n"

        def ends(program: str) -> bool:
            return outcome(entered, begin + program, str(secret)) == ENDED

        if not ends(INNOCENT):
            return "a harmless program failed"
        found = [name for name, program in PROGRAMS.items() if ends(program)]
    return f"hostile programs could: {', '.join(found)}" if found else ""


if __name__ == "__main__":
    print(json.dumps(through(AgentLimits(*json.loads(sys.argv[1])))))
