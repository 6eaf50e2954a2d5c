"""Hostile programs that the self-test runs. A program that ends without an error has broken the isolation.

Used only by the self-test and the tests. Each program is source text that uses two names. `secret` is the
path of a file that a worker must not read; `parent` is the id of a process that it must not reach.
"""

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
