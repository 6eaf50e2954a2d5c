"""The tasks of an environment of `verifiers`, which the Python that has the package lists."""

import json
import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from heapq import nlargest

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem, digest_of

log = logging.getLogger(__name__)


class VerifiersTasks(Domain):
    """Tasks of both splits. command: prints them, a line each, with these further variables."""

    name = "verifiers"

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]):
        self._command = tuple(command)
        self._variables = tuple(sorted(variables.items()))

    @property
    def train_size(self) -> int:
        return len(self._train)

    @property
    def heldout_size(self) -> int:
        return len(self._heldout)

    def train_problem(self, index: int) -> Problem:
        return _problem(self._train[index])

    def heldout_problem(self, index: int) -> Problem:
        return _problem(self._heldout[index])

    def longest_problems(self, count: int) -> list[int]:
        return _longest(self._train, count)

    def longest_heldout(self, count: int) -> list[int]:
        return _longest(self._heldout, count)

    def digest(self) -> str:
        return digest_of(self._train)

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        raise NotImplementedError("tasks of verifiers are attempted by the worker")

    @cached_property
    def _train(self) -> list[str]:
        return self._lines("train")

    @cached_property
    def _heldout(self) -> list[str]:
        return self._lines("heldout")

    def _lines(self, split: str) -> list[str]:
        lines = lines_of(self._command, self._variables)
        if not lines.get(split):
            why = (
                f"all {len(lines['null'])} are held out too" if lines.get("null") else "the taskset has none"
            )
            raise ValueError(f"domain.{split} selects no task: {why}")
        return lines[split]


@cache
def lines_of(command: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """Returns the lines that a command prints, by split. Raises ValueError with its error.

    "null" is the split of training tasks with the content of held-out ones.
    """
    environment = {**os.environ, **dict(variables)}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        encoding="utf-8",
        errors="replace",
    )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if "error" in said:
            raise _unusable(command, said["error"])
        found.setdefault(said["split"] or "null", []).append(line)
    if done.returncode:
        raise _unusable(command, done.stderr.strip().split("\n")[-1] or f"exit status {done.returncode}")
    if leaked := len(found.get("null", ())):
        log.warning("%d tasks are not trained on, because tasks of the same content are held out", leaked)
    return found


def _unusable(command: Sequence[str], why: str) -> ValueError:
    return ValueError(f"the environment of verifiers cannot be used ({command[0]}): {why}")


def _problem(line: str) -> Problem:
    task = json.loads(line)
    return Problem(f"{task['split']}/{task['data']['idx']}", task["messages"], task)


def _longest(lines: Sequence[str], count: int) -> list[int]:
    """Returns the lines with the longest messages, of those that are long."""
    long = nlargest(4 * count, range(len(lines)), key=lambda index: len(lines[index]))
    return nlargest(count, long, key=lambda index: len(json.dumps(json.loads(lines[index])["messages"])))
