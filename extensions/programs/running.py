"""Runs a program in this confined process, as an interpreter would, and ends the process.

Modules that solutions often import are imported here, once, so that a fork has them.
"""

import array
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
from typing import NoReturn

from extensions.programs.messages import Status

STACK_BYTES = 64 << 20
NAME = "program.py"
OURS = ("contracts", "extensions", "pipelinerl", "msgspec", "pyseccomp")
REFUSED_FILES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSYS)
NO_DIRECTORY = "No usable temporary directory"  # what tempfile says if it can write nowhere
NO_THREAD = "can't start new thread"  # for whose stack there is no address space
ENVIRONMENT = ("PATH", "LANG", "HOME")
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
    result = os.dup(1) if entry else 1
    if entry:  # what the function prints is no result
        os.dup2(2, 1)
    main = _fresh_interpreter()
    status: int = Status.FINE
    try:
        if entry:
            main.__dict__.update(GIVEN)
        exec(compile(source, NAME, "exec", dont_inherit=True), main.__dict__)
        if entry:
            _write(result, _called(main, entry))
    except SystemExit as error:
        status = _status_of_exit(error)
    except BaseException as error:
        status = _status_of(error)
    os._exit(_finished(status))


def _fresh_interpreter() -> types.ModuleType:
    """Returns a new module `__main__`. This project's modules are gone, and standard streams are new."""
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if "packages" in path or path.startswith(sys.base_prefix)]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _finds_ours(finder)]
    sys.argv[:] = [NAME]
    for name in os.environ.keys() - ENVIRONMENT:
        del os.environ[name]
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    for number, (name, mode) in enumerate({"stdin": "rb", "stdout": "wb", "stderr": "wb"}.items()):
        stream = io.TextIOWrapper(os.fdopen(number, mode, closefd=False), encoding="utf-8")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def _finds_ours(finder: object) -> bool:
    """Returns True for a finder of packages that are installed from their sources."""
    return getattr(finder, "__module__", "").startswith("__editable__")


def _called(main: types.ModuleType, entry: str) -> bytes:
    """Calls the function, of a class `Solution` if that has it, and returns its result as JSON."""
    solution = getattr(main, "Solution", None)
    owner = solution() if hasattr(solution, entry) else main
    arguments = json.load(sys.stdin)
    return json.dumps(getattr(owner, entry)(*arguments)).encode()


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
    return Status.RAISED


def _finished(status: int) -> int:
    """Ends as an interpreter does: waits for threads, calls what was registered, and flushes the output."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        status = status or Status.RAISED
    try:
        for stream in (sys.stdout, sys.__stdout__):
            stream.flush()
    except BaseException:
        status = status or Status.RAISED
    return status
