"""Errors as one line of text, for a user to read."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

MAPPING = "must be a mapping, like {key: value}"
PLAIN = {  # by pydantic's type of a problem
    "dict_type": MAPPING,
    "extra_forbidden": "there is no such key",
    "list_type": "must be a list, like [a, b]",
    "model_type": MAPPING,
    "tuple_type": "must be a list, like [a, b]",
}


def one_line(error: BaseException) -> str:
    """Returns the error's complete message on one line; each problem of a ValidationError names its field."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    return "; ".join(map(problem_line, error.errors()))


def problem_line(problem: ErrorDetails) -> str:
    """Returns one problem of a ValidationError, which names its field."""
    field = ".".join(str(part) for part in problem["loc"])
    message = PLAIN.get(problem["type"], problem["msg"].removeprefix("Value error, "))
    return f"{field}: {message}" if field else message


def first_line(error: BaseException) -> str:
    """Returns the first line of the error's message, or the name of its class if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
