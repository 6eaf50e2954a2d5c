"""The tasks of an environment of `verifiers`, which the Python that has the package lists."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from heapq import nlargest

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem, digest_of

OVERLAP = None  # the split of a training task that is held out too


class VerifiersTasks(Domain):
    """Tasks of both splits. command: prints them, a line each."""

    name = "verifiers"
    fetches = True

    def __init__(self, command: Sequence[str]):
        self._command = tuple(command)

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

    def plan_notes(self) -> Iterator[str]:
        if count := sum(json.loads(line)["split"] is OVERLAP for line in lines_of(self._command)):
            yield f"left out: {count:,} tasks with the content of held-out ones"

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        raise NotImplementedError("tasks of verifiers are attempted by the worker")

    @cached_property
    def _train(self) -> list[str]:
        return self._of("train")

    @cached_property
    def _heldout(self) -> list[str]:
        return self._of("heldout")

    def _of(self, split: str) -> list[str]:
        lines = [line for line in lines_of(self._command) if json.loads(line)["split"] == split]
        if not lines:
            raise ValueError(f"domain.{split}: the taskset has no such task")
        return lines


@cache
def lines_of(command: Sequence[str]) -> list[str]:
    """Returns the lines that a command prints. Raises ValueError with the last line of its errors."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().split("\n")[-1] or f"exit status {done.returncode}"
        raise ValueError(f"the environment of verifiers cannot be used ({command[0]}): {words}")
    return done.stdout.splitlines()


def _problem(line: str) -> Problem:
    task = json.loads(line)
    return Problem(f"{task['split']}/{task['data']['idx']}", task["messages"], task)


def _longest(lines: Sequence[str], count: int) -> list[int]:
    return nlargest(count, range(len(lines)), key=lambda index: len(lines[index]))
