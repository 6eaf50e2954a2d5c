"""Domains whose problems have given difficulties and success rates."""

import itertools
from collections.abc import Callable
from typing import NoReturn

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem


class Labelled(Domain):
    """Difficulty labels are in reverse order: the last problem is the easiest."""

    def __init__(self, train_size: int, name: str = "labelled", heldout_size: int = 4):
        self.name, self.train_size, self.heldout_size = name, train_size, heldout_size

    def difficulty(self, index: int) -> float:
        assert 0 <= index < self.train_size
        return float(self.train_size - index)

    def train_problem(self, index: int) -> Problem:
        assert 0 <= index < self.train_size
        return Problem(f"train/{index}", [{"role": "user", "content": f"{self.name} {index}"}])

    def heldout_problem(self, index: int) -> Problem:
        assert 0 <= index < self.heldout_size
        return Problem(f"heldout/{index}", [{"role": "user", "content": f"{self.name} held out {index}"}])

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        return Attempt([answer.completion], reward=1.0, success=True)


class Fourths(Labelled):
    """A domain whose problems behave according to their index modulo 4.

    A problem is never solved, solved in every second attempt, always solved, or its verifier breaks at the
    first attempt. `guarded`: only without a system prompt.
    """

    def __init__(self, seed: int, train_size: int = 100, guarded: bool = False):
        super().__init__(train_size)
        self._guarded = guarded
        self._outcomes: dict[str, itertools.cycle] = {}

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        solved = self._outcome(problem)
        if self._guarded and problem.messages[0]["role"] == "system":
            solved = False
        return Attempt([answer.completion], reward=float(solved), success=solved)

    def _outcome(self, problem: Problem) -> bool:
        kinds: tuple[tuple[Callable[[], bool], ...], ...] = (
            (lambda: False,),
            (lambda: True, lambda: False),
            (lambda: True,),
            (_break, lambda: True, lambda: True, lambda: True),
        )
        index = int(problem.problem_id.split("/")[1])
        outcomes = self._outcomes.setdefault(problem.problem_id, itertools.cycle(kinds[index % 4]))
        return next(outcomes)()


def _break() -> NoReturn:
    raise ZeroDivisionError("the verifier broke")
