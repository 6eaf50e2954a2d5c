"""How a part ended, and the errors by which its function says so."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from contracts.support.files import write_atomically

State = Literal["pass", "fail", "skipped"]


class SkippedError(Exception):
    """The part cannot be tried here. The message says why."""


class FailedError(Exception):
    """Something does not hold. `lines` say what was measured, and what of it is wrong."""

    def __init__(self, *lines: str):
        super().__init__("; ".join(lines))
        self.lines = list(lines)


@dataclass(frozen=True)
class Outcome:
    """The result of one part."""

    part: str
    state: State
    seconds: float
    lines: list[str] = field(default_factory=list)  # what was measured, or why it failed or was skipped


def write_outcome(path: Path, outcome: Outcome) -> None:
    """Writes an outcome to a file that `read_outcome` reads."""
    write_atomically(path, json.dumps(asdict(outcome)).encode())


def read_outcome(path: Path) -> Outcome:
    """Returns what `write_outcome` wrote. Raises OSError if there is no file."""
    return Outcome(**json.loads(path.read_text()))
