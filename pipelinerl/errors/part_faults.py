"""Says what a part of the user's did wrong: which part, its file and line, what was expected, and what came.

Called wherever such a part is called: before the start, in judging's workers, by rollouts and by the trainer.
Must not know any of them.
"""

import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

from pipelinerl.errors import PartError, PlanError

ROOT = Path(__file__).resolve().parents[2]  # of the project
SHIPPED = ("contracts", "extensions", "inference_adapters", "pipelinerl", "trainer_adapters")  # the project's
LIBRARIES = tuple(  # where no file is the user's
    os.path.join(path, "")
    for path in {*map(str, map(ROOT.joinpath, SHIPPED))}
    | {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
LONGEST = 200  # characters of a value or an error in a message


def fault(part: object, expected: str, came: object, method: str = "__call__", role: str = "") -> str:
    """Returns the line that says what a part did wrong.

    part: the part itself, or its path where it could not be made.
    came: what it returned; or the exception that it raised, whose traceback tells the line.
    method: the method that was called, whose line is named where nothing was raised.
    role: what it is to the run, such as "objective".
    """
    place = place_of(came) if isinstance(came, BaseException) else None
    named = " ".join(filter(None, [role, path_of(part)]))
    where = place or definition_of(part, method)
    return f"{named}{f' ({where})' if where else ''}: expected {expected}, but {in_words(came)}"


@contextmanager
def raises_plan_error(part: object, method: str) -> Iterator[None]:
    """Raises PartError in the place of another exception that code of the user's raises in this method."""
    try:
        yield
    except PlanError:
        raise
    except Exception as error:
        if place_of(error) is None:
            raise
        raise PartError(fault(part, f"no error but PlanError in `{method}`", error)) from error


def path_of(part: object) -> str:
    """Returns the path of the part's class, as the configuration names it."""
    if isinstance(part, str):
        return part
    of = part if isinstance(part, type) or inspect.isroutine(part) else type(part)
    return f"{of.__module__}.{of.__qualname__}"


def place_of(error: BaseException) -> str | None:
    """Returns file and line of the user's code that raised the error, or None if none of it was running.

    Of several lines it is the innermost. The place of a syntax error is that of its text.
    """
    error = root_of(error)
    if isinstance(error, SyntaxError) and error.filename:
        return place(error.filename, error.lineno or 1)
    frames = [(at.f_code.co_filename, line) for at, line in traceback.walk_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if is_users(file)]
    return place(*own[-1]) if own else None


def root_of(error: BaseException) -> BaseException:
    """Returns the error that was the first cause of this one."""
    while error.__cause__ is not None and not isinstance(error, SyntaxError):
        error = error.__cause__
    return error


def is_users(file: str) -> bool:
    """Returns whether the file is neither this project's, nor a library's, nor no file at all."""
    is_installed = {"site-packages", "dist-packages"} & {*file.split(os.sep)}
    is_ours = file.startswith(("<", *LIBRARIES)) or file == str(ROOT / "launch.py")
    return not (is_ours or is_installed)


def place(file: str, line: int) -> str:
    """Returns the place, with the file as a user here would type it."""
    try:
        relative = os.path.relpath(file)
    except OSError:  # the directory is gone, or kept from a confined process
        return f"{file}:{line}"
    return f"{file if relative.startswith(os.pardir) else relative}:{line}"


def definition_of(part: object, method: str) -> str | None:
    """Returns where the part's method is defined, or else its class; None for one that is no Python code."""
    for found in _candidates(part, method):
        code = getattr(inspect.unwrap(found), "__code__", None)
        if isinstance(code, CodeType) and is_users(code.co_filename):
            return place(code.co_filename, code.co_firstlineno)
    if isinstance(part, str):
        module, _, name = part.rpartition(".")
        part = getattr(sys.modules.get(module), name, None)
        if part is None:
            return None
    of = part if isinstance(part, type) else type(part)
    try:
        return place(inspect.getfile(of), inspect.getsourcelines(of)[1])
    except (OSError, TypeError):
        return None


def _candidates(part: object, method: str) -> Iterator[object]:
    if inspect.isroutine(part):
        yield part
    if found := getattr(part, method, None):
        yield found


def in_words(came: object) -> str:
    """Returns what came, as what follows "but" in a sentence."""
    if isinstance(came, SystemExit):
        return f"it ended the process, with status {came.code!r}"
    if isinstance(came, BaseException):
        came = root_of(came)
        said = " ".join(str(came).split())[:LONGEST]
        return f"it raised {type(came).__name__}{f': {said}' if said else ''}"
    if isinstance(came, Happened):
        return str(came)
    return f"it gave {described(came)}"


class FaultError(Exception):
    """A part has failed; the message is its fault."""


def kind_of(line: str) -> str:
    """Returns what faults of the same cause have in common: all but the words of the exception."""
    return SAID.sub(r"\1", line)


SAID = re.compile(r"(but it raised \w+): .*")


class Happened(str):
    """What a part did instead, where it gave no value and raised nothing."""


def described(value: object) -> str:
    """Returns a few words on a value: an array's shape and dtype, or the value itself."""
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
