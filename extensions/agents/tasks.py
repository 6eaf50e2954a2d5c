"""Tasks of agents, from files: each line is a JSON object, which a program is given."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelinerl.domains.base import Attempt, ChatClient, Problem, Verified

EXPECTED = "expected"  # the field that a verifier compares with; a program is not given it
ID = "id"


class Tasks(Verified):
    """The lines of two files. A line is a JSON object; `id` is its name, else its number is.

    train, heldout: the files. verifier: `_target_` and options of what judges a program's answer, with the
    line's `expected` as its task; null if programs say their rewards.
    """

    name = "tasks"

    def __init__(self, train: str, heldout: str, verifier: Mapping[str, Any] | str | None = None):
        super().__init__(verifier or {})
        self._train_path = Path(train).absolute()
        self._heldout_path = Path(heldout).absolute()
        for path in (self._train_path, self._heldout_path):
            if not path.is_file():
                raise ValueError(f"there is no file {path}")

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        return super().verifiers if self._verifier else {}

    @property
    def train_size(self) -> int:
        return len(self._train)

    @property
    def heldout_size(self) -> int:
        return len(self._heldout)

    def train_problem(self, index: int) -> Problem:
        return self._problem(self._train[index])

    def heldout_problem(self, index: int) -> Problem:
        return self._problem(self._heldout[index])

    def task_of(self, problem: Problem) -> dict[str, Any]:
        """Returns what a program is given."""
        return self._shown[problem.problem_id]

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        raise NotImplementedError("tasks are attempted by agents: domain=agent")

    def _problem(self, row: Mapping[str, Any]) -> Problem:
        shown = json.dumps(self._shown[row[ID]], ensure_ascii=False)
        return Problem(row[ID], [{"role": "user", "content": shown}], row.get(EXPECTED))

    @cached_property
    def _train(self) -> list[dict[str, Any]]:
        return _rows(self._train_path, self._verifier is not None)

    @cached_property
    def _heldout(self) -> list[dict[str, Any]]:
        return _rows(self._heldout_path, self._verifier is not None)

    @cached_property
    def _shown(self) -> dict[str, dict[str, Any]]:
        rows = [*self._train, *self._heldout]
        return {row[ID]: {name: value for name, value in row.items() if name != EXPECTED} for row in rows}


def _rows(path: Path, needs_expected: bool) -> list[dict[str, Any]]:
    """Returns the lines of a file. Raises ValueError with the place of one that cannot be used."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number} is no JSON object")
        if needs_expected and EXPECTED not in row:
            raise ValueError(f"{path}:{number} has no {EXPECTED}, which the verifier compares with")
        rows.append(row | {ID: str(row.get(ID, f"{path.stem}/{number}"))})
    if not rows:
        raise ValueError(f"{path} has no line")
    if len({row[ID] for row in rows}) < len(rows):
        raise ValueError(f"{path} has two lines of one id")
    return rows
