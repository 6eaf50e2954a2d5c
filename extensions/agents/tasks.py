"""Tasks of agents, from files: each line is a JSON object, which a program is given."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelinerl.domains.base import Attempt, ChatClient, Problem, Verified, digest_of

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
        given = {"train": train, "heldout": heldout}
        for name, path in given.items():
            if not isinstance(path, str):
                raise ValueError(f"domain.problems.{name}={path} must be a file, a task in each line")
        self._paths = {name: Path(path).absolute() for name, path in given.items()}
        for name, path in self._paths.items():
            if not path.is_file():
                raise ValueError(f"domain.problems.{name}: there is no file {path}")

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
        return json.loads(problem.messages[0]["content"])

    def digest(self) -> str:
        return digest_of(json.dumps(row, sort_keys=True) for row in self._train)

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        raise NotImplementedError("tasks are attempted by agents: domain=agent")

    def _problem(self, row: Mapping[str, Any]) -> Problem:
        shown = {name: value for name, value in row.items() if name != EXPECTED}
        message = {"role": "user", "content": json.dumps(shown, ensure_ascii=False)}
        expected = row.get(EXPECTED)
        shown = expected if isinstance(expected, str | None) else json.dumps(expected, ensure_ascii=False)
        return Problem(row[ID], [message], expected, expected=shown)

    @cached_property
    def _train(self) -> list[dict[str, Any]]:
        return self._rows("train")

    @cached_property
    def _heldout(self) -> list[dict[str, Any]]:
        return self._rows("heldout")

    def _rows(self, name: str) -> list[dict[str, Any]]:
        """Returns the lines of a file. Raises ValueError with the place of one that cannot be used."""
        path = self._paths[name]
        rows = []
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if line.strip():
                row = _row(line, f"{path}:{number}", bool(self._verifier))
                rows.append(row | {ID: str(row.get(ID, f"{name}/{number}"))})
        if not rows:
            raise ValueError(f"{path} has no line")
        if len({row[ID] for row in rows}) < len(rows):
            raise ValueError(f"{path} has two lines of one id")
        return rows


def _row(line: str, place: str, needs_expected: bool) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place} is no JSON: {error}") from None  # the launcher would show the cause
    if not isinstance(row, dict):
        raise ValueError(f"{place} is no JSON object")
    if needs_expected and EXPECTED not in row:
        raise ValueError(f"{place} has no {EXPECTED}, which the verifier compares with")
    return row
