"""A domain for tests with two held-out sets of problems, solved at known rates."""

import asyncio
from collections import Counter
from pathlib import Path

from pipelinerl.domains.base import Answer, Attempt, ChatClient, Problem
from tests.scripted_domain import ScriptedDomain

HARD_EVERY = 4
LOOKS_AGAIN_S = 0.05


class Exams(ScriptedDomain):
    """A domain whose held-out problems are solved at known rates.

    Of the `easy` problems, every second one is always solved. Of the attempts at a `hard` problem, the first
    and then every fourth succeed. `until`: a file without which no held-out attempt ends but the first `free`
    ones. `ahead`: how many training attempts may start before the first `evaluated` held-out attempts have
    ended.
    """

    def __init__(
        self,
        seed: int,
        until: str = "/",
        free: int = 0,
        ahead: int | None = None,
        evaluated: int = 0,
    ):
        super().__init__(seed)
        self._until = Path(until)
        self._free = free
        self._attempts: Counter[str] = Counter()
        self._ahead = ahead
        self._to_evaluate = evaluated
        self._evaluated = asyncio.Event()

    def heldout_problem(self, index: int) -> Problem:
        messages = [{"role": "user", "content": f"h{index}"}]
        return Problem(f"heldout-{index}", messages, data=index, domain="hard" if index % 2 else "easy")

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        if problem.domain is None:
            await self._wait_for_evaluation()
            return await super().rollout(client, problem)
        answer: Answer = await client.chat(problem.messages)
        self._free -= 1
        while self._free < 0 and not self._until.exists():
            await asyncio.sleep(LOOKS_AGAIN_S)
        before = self._attempts[problem.problem_id]
        self._attempts[problem.problem_id] += 1
        if self._attempts.total() == self._to_evaluate:
            self._evaluated.set()
        solved = before % HARD_EVERY == 0 if problem.domain == "hard" else problem.data % 4 == 0
        return Attempt([answer.completion], reward=float(solved), success=solved)

    async def _wait_for_evaluation(self) -> None:
        if self._ahead is None:
            return
        self._ahead -= 1
        if self._ahead < 0:
            await self._evaluated.wait()
