"""A domain for tests: attempts that succeed, fail, take long or agree, at chosen rates."""

import asyncio
import random

from pipelinerl.domains.base import Answer, Attempt, ChatClient, Domain, Problem


class VerifierBroke(Exception):
    """What a failing verifier raises."""


class ScriptedDomain(Domain):
    name = "scripted"
    heldout_size = 64

    def __init__(
        self,
        seed: int,
        failing: float = 0.0,
        slow: float = 0.0,
        slow_s: float = 0.0,
        agreeing: float = 0.0,
        train_size: int = 1000,
    ):
        self.train_size = train_size
        self._random = random.Random(seed)
        self._failing, self._slow, self._slow_s, self._agreeing = failing, slow, slow_s, agreeing

    def train_problem(self, index: int) -> Problem:
        agreeing = random.Random(index).random() < self._agreeing
        return Problem(f"train-{index}", [{"role": "user", "content": f"{index}"}], data=agreeing)

    def heldout_problem(self, index: int) -> Problem:
        return Problem(f"heldout-{index}", [{"role": "user", "content": f"h{index}"}], data=False)

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer: Answer = await client.chat(problem.messages)
        if self._random.random() < self._slow:
            await asyncio.sleep(self._slow_s)
        if self._random.random() < self._failing:
            raise VerifierBroke("the verifier broke, as configured")
        reward = 0.0 if problem.data else float(self._random.random() < 0.5)
        return Attempt([answer.completion], reward=reward, success=reward == 1.0)
