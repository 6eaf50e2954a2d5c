"""Describes faults of user components: which component, its file and line, what was expected, what happened.

A user component is one whose class is neither this project's nor a library's; messages and documentation call
it a part. Called wherever user components are called: before the start, by rollouts, judging and the trainer.
"""

import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[2]  # of the project
SHIPPED = ("contracts", "extensions", "inference_adapters", "pipelinerl", "trainer_adapters")  # the project's
LIBRARIES = tuple(  # directories without user files
    os.path.join(path, "")
    for path in {*map(str, map(ROOT.joinpath, SHIPPED))}
    | {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
LONGEST = 200  # characters of a value or an error in a message
MESSAGE = re.compile(r"(but it raised \w+): .*")


class FaultError(Exception):
    """A component has failed. The message is the fault's description."""


class Happened(str):
    """A phrase that says what a component did, if it returned no value and raised nothing."""


def describe_fault(
    component: object, expected: str, came: object, method: str = "__call__", role: str = ""
) -> str:
    """Returns one line that describes a fault.

    component: the object, or its class path if it could not be made.
    came: the returned value, the raised exception, or a `Happened`.
    method: the called method, whose line is named if nothing was raised.
    role: the component's role in the run, such as "objective".
    """
    raised_at = location_of(came) if isinstance(came, BaseException) else None
    named = " ".join(filter(None, [role, path_of(component)]))
    where = raised_at or definition_of(component, method)
    return f"{named}{f' ({where})' if where else ''}: expected {expected}, but {in_words(came)}"


def path_of(component: object) -> str:
    """Returns the class path, as the configuration names it."""
    if isinstance(component, str):
        return component
    of = component if isinstance(component, type) or inspect.isroutine(component) else type(component)
    return f"{of.__module__}.{of.__qualname__}"


def location_of(error: BaseException) -> str | None:
    """Returns file and line of the innermost user code that raised the error; None without user code."""
    error = root_of(error)
    if isinstance(error, SyntaxError) and error.filename:
        return location(error.filename, error.lineno or 1)
    frames = [(at.f_code.co_filename, line) for at, line in traceback.walk_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if is_users(file)]
    return location(*own[-1]) if own else None


def raised_by_users(error: Exception) -> str | None:
    """Returns a message with the error and its location in user code; None without user code."""
    where = location_of(error)
    error = root_of(error)
    return where and f"{where} raised {type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"


def root_of(error: BaseException) -> BaseException:
    """Returns the first cause of the error."""
    while error.__cause__ is not None and not isinstance(error, SyntaxError):
        error = error.__cause__
    return error


def is_users(file: str) -> bool:
    """Returns True if the file exists and is neither this project's nor a library's."""
    is_installed = {"site-packages", "dist-packages"} & {*file.split(os.sep)}
    is_ours = file.startswith(("<", *LIBRARIES)) or file == str(ROOT / "launch.py")
    return not (is_ours or is_installed)


def location(file: str, line: int) -> str:
    """Returns FILE:LINE, relative to the current directory if the file is in it."""
    try:
        relative = os.path.relpath(file)
    except OSError:  # the directory was removed, or is hidden from a confined process
        return f"{file}:{line}"
    return f"{file if relative.startswith(os.pardir) else relative}:{line}"


def definition_of(component: object, method: str) -> str | None:
    """Returns the location of the method's definition, or of the class; None if it is no Python code."""
    for found in _candidates(component, method):
        code = getattr(inspect.unwrap(found), "__code__", None)
        if isinstance(code, CodeType) and is_users(code.co_filename):
            return location(code.co_filename, code.co_firstlineno)
    if isinstance(component, str):
        module, _, name = component.rpartition(".")
        component = getattr(sys.modules.get(module), name, None)
        if component is None:
            return None
    of = component if isinstance(component, type) else type(component)
    try:
        return location(inspect.getfile(of), inspect.getsourcelines(of)[1])
    except (OSError, TypeError):
        return None


def _candidates(component: object, method: str) -> Iterator[object]:
    if inspect.isroutine(component):
        yield component
    if found := getattr(component, method, None):
        yield found


def in_words(came: object) -> str:
    """Returns a phrase for the value or the exception, which follows "but" in a sentence."""
    if isinstance(came, SystemExit):
        return f"it ended the process, with status {came.code!r}"
    if isinstance(came, BaseException):
        came = root_of(came)
        message = " ".join(str(came).split())[:LONGEST]
        return f"it raised {type(came).__name__}{f': {message}' if message else ''}"
    return str(came) if isinstance(came, Happened) else f"it gave {described(came)}"


def kind_of(fault: str) -> str:
    """Returns the description without the message of the exception, to compare causes."""
    return MESSAGE.sub(r"\1", fault)


def described(value: object) -> str:
    """Returns a short description: the value, or shape and dtype of an array."""
    shape = getattr(value, "shape", None)
    name = type(value).__name__
    if shape is not None and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        if not tuple(shape):
            return f"the {name} {value.item()!r} of dtype {dtype}"
        return f"a {name} of shape {[*shape]} and dtype {dtype}"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"a {name} of {len(value)}: {repr(value)[:LONGEST]}"
    return f"the {name} {' '.join(repr(value).split())[:LONGEST]}"
