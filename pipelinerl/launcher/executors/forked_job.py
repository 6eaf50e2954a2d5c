"""Forks a Python job from the launcher, which has imported what the job needs, instead of starting it anew.

Called by `local.py`. The job's guard is started as for any other job, and takes the forked process over,
which is its child. What the process was before ends here: its files, signals, environment and arguments
become those of `python -m MODULE`.
"""

import atexit
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
from io import FileIO, TextIOWrapper
from typing import NoReturn

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.launcher.executors.base import Process
from pipelinerl.launcher.executors.command_line import show_as
from pipelinerl.launcher.executors.guard import PR_SET_CHILD_SUBREAPER

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
THREADS = "OMP_NUM_THREADS"  # a library reads it once, when it is loaded


def preload() -> None:
    """Imports the packages of most jobs, so that those forked from this process have them."""
    for name in PRELOADED:
        importlib.import_module(name)


def can_be_forked(process: Process, environment: Mapping[str, str]) -> bool:
    """Returns whether the job may be forked. It is then a module of this interpreter, without a GPU.

    A job with an environment of its own must not see this process's memory. CUDA cannot be used after a fork
    in every case, and another thread may hold a lock that the job needs.
    """
    return (
        sys.platform == "linux"
        and tuple(process.command[:2]) == (sys.executable, "-m")
        and not process.has_whole_environment
        and not environment.get("CUDA_VISIBLE_DEVICES")
        and threading.active_count() == 1
    )


def fork_job(command: Sequence[str], environment: Mapping[str, str], output: int) -> int:
    """Forks the job from the process that becomes its guard, and returns the job's process.

    output: the descriptor that the job prints to.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # as of the guard, which may begin after the job
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
        _, _, module, *arguments = command
        sys.argv = [module, *arguments]
        sys.path[:] = _path(environment.get("PYTHONPATH", ""))
        show_as(command, environment)
        status = _run(module)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _run(module: str) -> int:
    """Runs the module as a program, and ends as an interpreter does. Returns its exit status.

    A program that is interrupted ends by SIGINT.
    """
    status = 0
    interrupted = False
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = _status(end.code)
    except BaseException as error:
        traceback.print_exc()
        status = 1
        interrupted = isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
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
    form = sys.__stdout__ or sys.__stderr__  # with what the interpreter has chosen for the locale
    sys.stdin = TextIOWrapper(FileIO(0, closefd=False), form.encoding, form.errors)
    sys.stdout = _unbuffered(1, form.encoding, form.errors)
    sys.stderr = _unbuffered(2, form.encoding, "backslashreplace")


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
        if THREADS in os.environ:
            torch.set_num_threads(int(os.environ[THREADS]))


def _path(of_the_environment: str) -> list[str]:
    """Returns `sys.path` as `python -m` has it: the working directory and PYTHONPATH come first."""
    first = [os.getcwd(), *filter(None, of_the_environment.split(os.pathsep))]
    return [*first, *(entry for entry in sys.path if entry not in first)]
