"""Runs a program in this confined process, as an interpreter would, and ends the process.

Modules that solutions often import are imported here, once, so that a fork has them.
"""

import array
import ast
import atexit
import bisect
import builtins
import collections
import copy
import datetime
import decimal
import errno
import fractions
import functools
import gc
import heapq
import io
import itertools
import json
import math
import operator
import os
import queue
import random
import re
import resource
import statistics
import string
import sys
import threading
import types
import typing
from contextlib import suppress
from typing import Any, NoReturn

from extensions.programs.statuses import Status

STACK_BYTES = 64 << 20
NAME = "program.py"
OURS = ("contracts", "extensions", "pipelinerl", "msgspec", "pyseccomp")
REFUSED_FILES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSYS, errno.EFBIG)
NO_DIRECTORY = "No usable temporary directory"  # what tempfile says if it can write nowhere
NO_DATABASE = "unable to open database file"
NO_THREAD = "can't start new thread"  # for whose stack there is no address space
ENVIRONMENT = ("PATH", "LANG", "HOME", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
FRAMES = 16  # of this project, below a program's own
RECURSION_OF_GRADERS = 50_000  # that of LiveCodeBench
BY_NAME = (array, bisect, collections, copy, datetime, decimal, fractions, functools, heapq, itertools, json)
BY_NAME += (math, operator, queue, random, re, statistics, string, sys, typing)
WITH_ALL = (
    string,
    re,
    collections,
    heapq,
    bisect,
    copy,
    math,
    random,
    itertools,
    functools,
    operator,
    typing,
)
# What graders of functions import before a solution, because statements use it without an import.
GIVEN = {name: value for module in WITH_ALL for name, value in vars(module).items() if name[0] != "_"}
GIVEN = {name: value for name, value in GIVEN.items() if not hasattr(builtins, name)}
GIVEN |= {module.__name__: module for module in BY_NAME}


def run_program(source: bytes, entry: str | None) -> NoReturn:
    """Runs the program, or its function on the arguments in standard input, and ends the process."""
    _forget_ours()
    status: int = Status.FINE
    try:
        if entry:
            _call(source, entry)
        else:
            _new_streams()
            exec(compile(source, NAME, "exec", dont_inherit=True), _new_module("__main__").__dict__)
    except SystemExit as error:
        status = _status_of_exit(error)
    except BaseException as error:
        status = _status_of(error)
    os._exit(_finished(status))


def main() -> NoReturn:
    """Runs the program in the file that the command names, or its function if the command names one."""
    _, file, entry = sys.argv
    with open(file, "rb") as opened:
        source = opened.read()
    run_program(source, entry)


def stack_limits() -> tuple[int, int]:
    """Returns the soft and the hard limit of a program's stack."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    return STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard), hard


def _call(source: bytes, entry: str) -> None:
    """Calls the program's function on the arguments in standard input, and writes its result as JSON."""
    result = os.dup(1)
    given = _arguments()
    _new_streams()
    sys.setrecursionlimit(RECURSION_OF_GRADERS)
    module = _new_module("program")  # imported, as graders do
    module.__dict__.update(GIVEN)
    exec(compile(source, NAME, "exec", dont_inherit=True), module.__dict__)
    solution = getattr(module, "Solution", None)
    owner = solution() if hasattr(solution, entry) else module
    function = getattr(owner, entry)
    if function is GIVEN.get(entry):  # or an empty program would have it
        raise NameError(f"there is no function {entry}")
    _write(result, json.dumps(function(*given), default=_plain).encode())


def _forget_ours() -> None:
    """Removes this project from the modules and the search for modules, and sets the limits of recursion."""
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS or _is_finder(name)]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if "packages" in path or path.startswith(sys.base_prefix)]
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not _is_finder(getattr(finder, "__module__", ""))
    ]
    sys.argv[:] = [NAME]
    for name in os.environ.keys() - ENVIRONMENT:
        del os.environ[name]
    resource.setrlimit(resource.RLIMIT_STACK, stack_limits())
    sys.setrecursionlimit(sys.getrecursionlimit() + FRAMES)


def _arguments() -> list[Any]:
    """Reads a function's arguments: a list in JSON, or a literal of Python. Its program has no input."""
    text = open(0, "rb", closefd=False).read().decode()  # noqa: SIM115
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)  # what the function prints is no result
    sys.set_int_max_str_digits(0)
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def _new_streams() -> None:
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        stream = io.TextIOWrapper(os.fdopen(number, f"{mode}b", closefd=False), "utf-8", newline="\n")
        stream.mode = mode  # as the interpreter's own have it
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _new_module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update({"__file__": NAME, "__builtins__": builtins})
    sys.modules["__main__"] = sys.modules[name] = module
    return module


def _is_finder(module: str) -> bool:
    """Returns True for the finders of packages that are installed from their sources."""
    return module.startswith("__editable__")


def _plain(value: Any) -> Any:
    """Returns the list or the number that a result of another type stands for."""
    if hasattr(value, "tolist"):  # of numpy
        return value.tolist()
    if isinstance(value, decimal.Decimal | fractions.Fraction):
        return float(value)
    return list(value)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _status_of_exit(error: SystemExit) -> int:
    if error.code is None:
        return Status.FINE
    return error.code & 0xFF if isinstance(error.code, int) else Status.RAISED


def _status_of(error: BaseException) -> int:
    """Returns the status of an exception that the program did not catch."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_THREAD in str(error)):
        return Status.MEMORY
    if isinstance(error, BlockingIOError):  # the filter's answer to a new process
        return Status.PROCESSES
    if isinstance(error, OSError) and error.filename is not None and error.errno in REFUSED_FILES:
        return Status.FILES
    if isinstance(error, FileNotFoundError) and NO_DIRECTORY in str(error):
        return Status.FILES
    if type(error).__module__ == "sqlite3" and NO_DATABASE in str(error):
        return Status.FILES
    return Status.RAISED


def _finished(status: int) -> int:
    """Ends as an interpreter does: waits for threads, calls what was registered, and closes what is open."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        _flush()
        sys.stdout = sys.__stdout__
        sys.stderr = sys.__stderr__
        for name in ("__main__", "program"):
            sys.modules.pop(name, None)
        gc.collect()  # open files are closed, and objects finalised
        _flush()
    except BaseException:
        return status or Status.RAISED
    return status


def _flush() -> None:
    for stream in (getattr(sys, "stdout", None), sys.__stdout__):
        if stream is not None:
            with suppress(ValueError):  # it is closed or detached
                stream.flush()
