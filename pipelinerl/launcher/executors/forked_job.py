"""Forks a Python job from the launcher, which has imported what the job needs, instead of starting it anew.

Called by `local.py`. The job's guard is started as for any other job, and takes the forked process over,
which is its child. What the process was before ends here: its files, signals, environment and arguments
become those of `python -m MODULE`.
"""

import atexit
import contextlib
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
from types import ModuleType
from typing import NoReturn

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.launcher.executors.base import Process
from pipelinerl.launcher.executors.command_line import show_as
from pipelinerl.launcher.executors.guard import become_subreaper
from pipelinerl.launcher.interruptions import SIGNALS
from pipelinerl.paths import ROOT

# The packages that take longest to import of those that the jobs of most runs share. None touches a device.
PRELOADED = (
    "aiohttp",
    "fastapi",
    "hydra.utils",
    "numpy",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.profiler",
    "transformers",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.generation.continuous_batching",
    "uvicorn",
)
OWN_PATH = os.environ.get("PYTHONPATH", "")
THREADS = "OMP_NUM_THREADS"  # a library reads it once, when it is loaded


@cache
def preload() -> None:
    """Imports the packages of most jobs, so that those forked from this process have them."""
    variables = dict(os.environ)
    # An import that is cut short may end in any exception, or leave half a module.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    gc.disable()  # what is imported stays, so jobs need not look for garbage in it either
    try:
        for name in PRELOADED:
            with contextlib.suppress(ImportError):  # a server may have an environment of its own
                importlib.import_module(name)
    finally:
        gc.enable()
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        os.environ.clear()  # torch sets one of its own, which is not for other jobs
        os.environ.update(variables)


def can_be_forked(process: Process, environment: Mapping[str, str]) -> bool:
    """Returns whether the job is forked: a module of this interpreter that may see its owner's memory.

    CUDA cannot be used after a fork in every case. Another thread may hold a lock that the job needs. Without
    standard output, the descriptors of other files have its numbers.
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
    """Forks the job from the process that becomes its guard, and returns the job's process.

    output: the descriptor that the job prints to.
    """
    become_subreaper()  # as of the guard, which may begin after the job
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
        gc.freeze()  # a job that collects garbage does not walk through what the launcher has imported
        if os.getppid() != guard:
            os._exit(status)
        os.setsid()
        _take_files(output)
        _take_signals()
        os.environ.clear()
        os.environ.update(environment)
        _forget_exits()
        _take_libraries()
        sys.path[:] = _path(environment.get("PYTHONPATH", ""))
        show_as(command, environment)
        _, _, module, *arguments = command
        status = _run(module, arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _run(module: str, arguments: Sequence[str]) -> int:
    """Runs the module as a program, and ends as an interpreter does. Returns its exit status.

    A program that is interrupted ends by SIGINT.
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
    gc.collect()  # closes files that nobody has closed
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


def _take_files(output: int) -> None:
    """Leads every descriptor of the launcher nowhere, and has the job print to `output`.

    The numbers stay in use: an object of the launcher that is still there can close nothing of the job's.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(nowhere, 0)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != nowhere:
            os.dup2(nowhere, number, inheritable=False)
    form = sys.__stdout__  # with what the interpreter has chosen for the locale
    sys.stdin = sys.__stdin__ = TextIOWrapper(FileIO(0, closefd=False), form.encoding, form.errors)
    sys.stdout = sys.__stdout__ = _unbuffered(1, form.encoding, form.errors)
    sys.stderr = sys.__stderr__ = _unbuffered(2, form.encoding, "backslashreplace")


def _unbuffered(number: int, encoding: str, errors: str) -> TextIOWrapper:
    return TextIOWrapper(FileIO(number, "wb", closefd=False), encoding, errors, write_through=True)


def _take_signals() -> None:
    """Gives each signal that the launcher handles back to what an interpreter does. Ignored ones stay so."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _forget_exits() -> None:
    """Forgets what the launcher does at its end, such as removing its directories."""
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    atexit._clear()
    atexit.register(logging.shutdown)
    if "multiprocessing.util" in sys.modules:
        util = sys.modules["multiprocessing.util"]
        util._finalizer_registry.clear()
        atexit.register(util._exit_function)


def _take_libraries() -> None:
    """Gives libraries what they otherwise read when they are loaded, and random numbers of their own."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()
        threads = os.environ.get(THREADS, "").partition(",")[0]  # of the outermost level
        if threads.isdecimal() and int(threads):
            torch.set_num_threads(int(threads))


def _path(of_the_environment: str) -> list[str]:
    """Returns `sys.path` as `python -m` has it: the working directory and PYTHONPATH come first.

    What the launcher has of its own is left out.
    """
    first = [os.getcwd(), *_entries(of_the_environment)]
    own = {*first, str(ROOT), *_entries(OWN_PATH)}
    return [*first, *(entry for entry in sys.path if entry not in own)]


def _entries(path: str) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if entry]
