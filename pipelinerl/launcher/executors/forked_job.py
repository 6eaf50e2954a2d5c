"""Forks a Python job from the launcher, which already has its imports, instead of starting an interpreter.

Called by `local.py`. The forked process is a child of the job's guard. Its files, signals, environment and
arguments become those of `python -m MODULE`, also in /proc, and so in `ps` and `top`.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import logging
import os
import runpy
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from io import FileIO, TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.launcher.executors.base import Process
from pipelinerl.launcher.executors.guard import become_subreaper
from pipelinerl.launcher.terminal import SIGNALS
from pipelinerl.paths import ROOT

# The packages that take longest to import of those that the jobs of most runs share. None touches a device.
PRELOADED = """
aiohttp fastapi hydra.utils numpy uvicorn
torch.distributed.checkpoint torch.distributed.fsdp torch.distributed.tensor torch.profiler
transformers transformers.modeling_utils transformers.generation.continuous_batching
transformers.models.auto.modeling_auto transformers.models.auto.tokenization_auto
transformers.models.qwen2.modeling_qwen2
"""
OWN_PATH = os.environ.get("PYTHONPATH", "")
PR_SET_MM = 35  # <linux/prctl.h>
PR_SET_MM_MAP = 14
NO_FILE = 0xFFFFFFFF  # the program's file stays the same
# Fields of /proc/self/stat, counted from the state, by the names of struct prctl_mm_map.
FIELDS = dict(start_code=23, end_code=24, start_stack=25, start_data=42, end_data=43, start_brk=44)
ADDRESSES = """
start_code end_code start_data end_data start_brk brk start_stack arg_start arg_end env_start env_end auxv
"""
MEMORY: list[ctypes.Array] = []  # keeps the memory that the kernel reads
THREADS = "OMP_NUM_THREADS"  # libraries read it once, when they are loaded


@cache
def preload() -> None:
    """Imports the packages of most jobs into this process."""
    variables = dict(os.environ)
    # An interrupted import may raise any exception, or leave an incomplete module.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    gc.disable()  # imported modules are no garbage
    try:
        for name in PRELOADED.split():
            with contextlib.suppress(ImportError):  # a server may have its own Python environment
                importlib.import_module(name)
    finally:
        gc.enable()
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        os.environ.clear()  # torch sets a variable that other jobs must not inherit
        os.environ.update(variables)


def can_be_forked(process: Process, environment: Mapping[str, str]) -> bool:
    """Returns True if the job is a module of this interpreter, without a GPU, that may see this memory.

    CUDA may fail after a fork. A lock that another thread has would never be released. Without standard
    output, other files have its descriptors.
    """
    return (
        sys.platform == "linux"
        and tuple(process.command[:2]) == (sys.executable, "-m")
        and process.may_be_forked
        and not environment.get("CUDA_VISIBLE_DEVICES")
        and threading.active_count() == 1
        and None not in (sys.__stdout__, sys.__stderr__)
    )


def fork_job(command: Sequence[str], environment: Mapping[str, str], output: int) -> int:
    """Forks the job from the process that becomes its guard, and returns the job's process id.

    output: the descriptor that the job prints to.
    """
    become_subreaper()  # the guard does it again, but may begin after the job
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the guard can pass it on
    guard = os.getpid()
    job = os.fork()
    if job == 0:
        _become(command, environment, output, guard)
    return job


def _become(command: Sequence[str], environment: Mapping[str, str], output: int, guard: int) -> NoReturn:
    status = 1
    try:
        die_with_parent()
        gc.freeze()  # the job's garbage collections skip the launcher's objects
        if os.getppid() != guard:
            os._exit(status)
        os.setsid()
        _replace_files(output)
        _reset_signals()
        os.environ.clear()
        os.environ.update(environment)
        _forget_exit_handlers()
        _reset_libraries()
        sys.path[:] = _path(environment.get("PYTHONPATH", ""))
        show_as(command, environment)
        _, _, module, *arguments = command
        status = _run(module, arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _run(module: str, arguments: Sequence[str]) -> int:
    """Runs the module as a program, then shuts down as an interpreter does. Returns its exit status.

    An interrupted program ends by SIGINT.
    """
    sys.argv = ["-m", *arguments]
    sys.modules["__main__"] = ModuleType("__main__")
    status = 0
    interrupted = False
    try:
        runpy._run_module_as_main(module)
    except SystemExit as end:
        status = _status(end.code)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
        interrupted = isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    gc.collect()  # closes open files
    if sys.stdout:
        sys.stdout.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _replace_files(output: int) -> None:
    """Points every descriptor of the launcher to /dev/null, and standard output and error to `output`.

    The numbers stay in use, so that a remaining object of the launcher cannot close a file of the job.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(nowhere, 0)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != nowhere:
            os.dup2(nowhere, number, inheritable=False)
    form = sys.__stdout__  # with the encoding of the locale
    sys.stdin = sys.__stdin__ = TextIOWrapper(FileIO(0, closefd=False), form.encoding, form.errors)
    sys.stdout = sys.__stdout__ = _unbuffered(1, form.encoding, form.errors)
    sys.stderr = sys.__stderr__ = _unbuffered(2, form.encoding, "backslashreplace")


def _unbuffered(number: int, encoding: str, errors: str) -> TextIOWrapper:
    return TextIOWrapper(FileIO(number, "wb", closefd=False), encoding, errors, write_through=True)


def _reset_signals() -> None:
    """Restores the interpreter's handlers. Ignored signals stay ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _forget_exit_handlers() -> None:
    """Removes the launcher's exit handlers, which for example delete its directories."""
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    atexit._clear()
    atexit.register(logging.shutdown)
    if "multiprocessing.util" in sys.modules:
        util = sys.modules["multiprocessing.util"]
        util._finalizer_registry.clear()
        atexit.register(util._exit_function)


def _reset_libraries() -> None:
    """Seeds the libraries' random numbers, and sets the number of threads, which torch reads when loaded."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()
        threads = os.environ.get(THREADS, "").partition(",")[0]  # of the outermost level
        if threads.isdecimal() and int(threads):
            torch.set_num_threads(int(threads))


def _path(python_path: str) -> list[str]:
    """Returns the `sys.path` of `python -m`, without entries that only the launcher has."""
    first = [os.getcwd(), *_entries(python_path)]
    own = {*first, str(ROOT), *_entries(OWN_PATH)}
    return [*first, *(entry for entry in sys.path if entry not in own)]


def _entries(path: str) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if entry]


class Map(ctypes.Structure):
    """The kernel's struct prctl_mm_map."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ADDRESSES.split()),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def show_as(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Changes the command line and environment in /proc. Returns False, unchanged, if the kernel refuses.

    The kernel reads both from the process's memory, between addresses that the process may set (PR_SET_MM_MAP
    of prctl(2)).
    """
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    libc.sbrk.argtypes = [ctypes.c_ssize_t]
    shown = Map(exe_fd=NO_FILE, brk=libc.sbrk(0))
    stat = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    for name, field in FIELDS.items():
        setattr(shown, name, int(stat[field]))
    shown.arg_start, shown.arg_end = _store(command)
    shown.env_start, shown.env_end = _store([f"{name}={value}" for name, value in environment.items()])
    given = [PR_SET_MM, PR_SET_MM_MAP, ctypes.addressof(shown), ctypes.sizeof(shown), 0]
    return libc.prctl(*map(ctypes.c_ulong, given)) == 0


def _store(texts: Sequence[str]) -> tuple[int, int]:
    """Stores the texts as C strings, and returns the addresses of their beginning and end."""
    data = b"".join(os.fsencode(text) + b"\0" for text in texts)
    MEMORY.append(ctypes.create_string_buffer(data, len(data)))
    start = ctypes.addressof(MEMORY[-1])
    return start, start + len(data)
