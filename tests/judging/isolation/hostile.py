"""Hostile texts for a judge that executes them. One that gets through ends without an error: it is rewarded.

They find the names `marker`, a path outside; `parent`, `service` and `victim`, processes; `library`, the
C library; and `called(name, ...)`, a system call by name that raises OSError.
"""

import pyseccomp

NAMES = [
    "bpf",
    "keyctl",
    "add_key",
    "io_uring_setup",
    "userfaultfd",
    "perf_event_open",
    "pidfd_send_signal",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "unshare",
    "mount",
    "personality",
    "shmget",
    "mq_open",
    "inotify_init1",
    "open_by_handle_at",
    "clone3",
    "tgkill",
    "rt_sigqueueinfo",
    "sync",
    "sendmsg",
]
NUMBERS = {name: pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) for name in NAMES}
PREAMBLE = """
import ctypes, os, sys
marker, parent, service, victim = {marker!r}, os.getppid(), {service}, {victim}
library = ctypes.CDLL(None, use_errno=True)
def called(name, *arguments):
    result = library.syscall(ctypes.c_long({numbers}[name]), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
"""
FILES = {
    "read a secret": "open(marker + '.secret').read()",
    "list a directory": "os.listdir(os.path.dirname(marker))",
    "read through ..": "open('/usr/lib/../../etc/passwd').read()",
    "read shadow": "open('/etc/shadow').read()",
    "read own environment of the kernel": "open('/proc/self/environ').read()",
    "read the parent's environment": "open(f'/proc/{parent}/environ').read()",
    "read the service's environment": "open(f'/proc/{service}/environ').read()",
    "read the memory of another process": "open(f'/proc/{victim}/mem', 'rb').read(1)",
    "write a file": "open(marker, 'w').write('x')",
    "write an empty file": "open(marker, 'w')",
    "write in /tmp": "open('/tmp/' + os.path.basename(marker), 'w')",
    "write in /dev/shm": "open('/dev/shm/' + os.path.basename(marker), 'w')",
    "write a module": "open(os.__file__, 'a')",
    "make a directory": "os.mkdir(marker)",
    "make a pipe with a name": "os.mkfifo(marker)",
    "make a symbolic link": "os.symlink('/etc/passwd', marker)",
    "make a hard link": "os.link(os.__file__, marker)",
    "rename": "os.rename(marker + '.secret', marker)",
    "remove": "os.remove(marker + '.secret')",
    "change a mode": "os.chmod(marker + '.secret', 0o777)",
    "change a time": "os.utime(marker + '.secret', (0, 0))",
    "truncate": "os.truncate(marker + '.secret', 0)",
}
NETWORK = {
    "TCP": "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
    "listen": "import socket; socket.create_server(('127.0.0.1', 0))",
    "UDP": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "unix socket": "import socket; socket.socket(socket.AF_UNIX).bind(marker)",
    "abstract socket": "import socket; socket.socket(socket.AF_UNIX).bind('\\0' + marker)",
    "netlink": "import socket; socket.socket(16, socket.SOCK_RAW, 0)",
    "pass a descriptor": "called('sendmsg', 4, 0, 0)",
    "socket pair": "import socket; socket.socketpair()",
}
PROCESSES = {
    "fork": "os.fork() or os._exit(0)",
    "fork bomb": "while True:\n    os.fork()",
    "daemon": (
        "if not os.fork():\n    os.setsid()\n    if not os.fork():\n"
        "        open(marker, 'w')\n    os._exit(0)"
    ),
    "setsid": "os.setsid()",
    "subprocess": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "system": "assert os.system(f'touch {marker}') == 0",
    "exec": "os.execv('/bin/true', ['/bin/true'])",
    "spawn": "os.posix_spawn('/bin/true', ['/bin/true'], {})",
    "multiprocessing": "import multiprocessing as m; p = m.Process(target=print); p.start(); p.join()",
    "clone3": "called('clone3', (ctypes.c_uint64 * 11)(), 88)",
    "kill the parent": "os.kill(parent, 9)",
    "stop the parent": "os.kill(parent, 19)",
    "kill the service": "os.kill(service, 9)",
    "kill another": "os.kill(victim, 9)",
    "kill all": "os.kill(-1, 9)",
    "kill a thread": "called('tgkill', parent, parent, 9)",
    "queue a signal": "called('rt_sigqueueinfo', parent, 9, (ctypes.c_char * 128)())",
    "signal by descriptor": "called('pidfd_send_signal', os.pidfd_open(victim), 9, None, 0)",
    "signal by owner of a file": "import fcntl; fcntl.fcntl(1, fcntl.F_SETOWN, victim)",
    "trace": "called('ptrace', 0x4206, victim, 0, 0)",
    "read memory": "called('process_vm_readv', victim, *[(ctypes.c_uint64 * 2)(), 1] * 2, 0)",
    "write memory": "called('process_vm_writev', victim, *[(ctypes.c_uint64 * 2)(), 1] * 2, 0)",
    "renice": "os.setpriority(os.PRIO_PROCESS, victim, 19)",
    "pin another to a core": "os.sched_setaffinity(victim, {0})",
    "raise limits": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
    "limits of another": "import resource; resource.prlimit(victim, resource.RLIMIT_CPU, (1, 1))",
    "outlive the parent": "assert library.prctl(1, 0) == 0",
}
KERNEL = {
    "keyring": "called('add_key', b'user', b'made', b'x', 1, -3)",
    "key control": "called('keyctl', 0, -3, 1)",
    "file in memory": "os.memfd_create('made')",
    "io_uring": "called('io_uring_setup', 1, (ctypes.c_char * 120)())",
    "user namespace": "called('unshare', 0x10000000)",
    "mount": "called('mount', b'x', b'/tmp', b'tmpfs', 0, 0)",
    "bpf": "called('bpf', 0, (ctypes.c_char * 128)(), 128)",
    "perf": "called('perf_event_open', (ctypes.c_char * 128)(), 0, -1, -1, 0)",
    "userfaultfd": "called('userfaultfd', 1)",
    "personality": "called('personality', 0x0040000)",
    "shared memory": "called('shmget', 0, 4096, 0o1600)",
    "message queue": "called('mq_open', b'made', 0o102, 0o600, 0)",
    "watch files": "called('inotify_init1', 0)",
    "file handle": "called('open_by_handle_at', 3, (ctypes.c_char * 32)(), 0)",
    "sync disks": "called('sync')",
    "lock a file": "import fcntl; fcntl.flock(os.open(os.__file__, os.O_RDONLY), 2)",
}
UNBOUNDED = {  # and which limit each meets, or None where it fails by itself
    "memory": ("x = bytearray(1 << 33)", "memory"),
    "memory in pieces": ("x = []\nwhile True:\n    x.append(bytearray(1 << 24))", "memory"),
    "mapped memory": ("import mmap; x = [mmap.mmap(-1, 1 << 28) for _ in range(99)]", None),
    "recursion": ("def f():\n    f()\nf()", "memory"),
    "recursion in C": (
        "import sys; sys.setrecursionlimit(10**9)\nx = []\nfor _ in range(3 * 10**5):\n    x = [x]\nrepr(x)",
        "output",
    ),
    "threads": (
        "import threading, time\nthreading.stack_size(1 << 23)\n"
        "while True:\n    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        None,
    ),
    "own segmentation fault": ("ctypes.string_at(0)", "output"),
    "abort": ("os.abort()", "output"),
    "end without a verdict": ("os._exit(0)", "output"),
    "descriptors": ("x = []\nwhile True:\n    x.append(open(os.__file__))", None),
}
ENDLESS = {
    "loop": "while True:\n    pass",
    "loop that catches all": (
        "while True:\n    try:\n        while True:\n            pass\n"
        "    except BaseException:\n        pass"
    ),
    "large number": "10**10**9",
    "regular expression": "import re; re.match('(a+)+$', 'a' * 64 + 'b')",
    "sleep": "import time; time.sleep(99)",
    "ignored signals": (
        "import signal\nfor n in range(1, 64):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nsignal.pause()"
    ),
    "output": "while True:\n    print('x' * 9999)\n    os.write(2, b'x' * 9999)",
}
FOREIGN_CALL = (  # fork, in the convention of 32-bit programs
    "import mmap\npage = mmap.mmap(-1, 4096, prot=7)\npage.write(bytes.fromhex('b802000000cd80c3'))\n"
    "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()"
)
HARMLESS = {
    "a module that was not imported": "import wave, sympy.combinatorics",
    "a library of the system": "import ctypes.util; ctypes.CDLL('libm.so.6').cos",
    "a thread": "import threading; t = threading.Thread(target=print); t.start(); t.join()",
    "a time limit of its own": (
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: 1 / 0)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "try:\n    time.sleep(9)\n    reward = 1 / 0\nexcept ZeroDivisionError:\n    pass"
    ),
    "random numbers": "import random, secrets; random.seed(); secrets.token_hex()",
    "algebra": "import sympy; assert sympy.simplify('sin(x)**2 + cos(x)**2') == 1",
    "a time zone": "import zoneinfo, datetime; datetime.datetime.now(zoneinfo.ZoneInfo('Europe/Paris'))",
    "printing": "print('x' * 10**6); sys.stderr.write('x')",
}
ALL = FILES | NETWORK | PROCESSES | KERNEL
