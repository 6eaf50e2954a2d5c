"""A domain with random rewards, so that every group has a signal and no problem is ever learned."""

import random

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem


class DrawnRewards(Domain):
    name = "drawn_rewards"
    train_size = 1000
    heldout_size = 64

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def train_problem(self, index: int) -> Problem:
        return Problem(f"train-{index}", [{"role": "user", "content": f"{index}"}])

    def heldout_problem(self, index: int) -> Problem:
        return Problem(f"heldout-{index}", [{"role": "user", "content": f"h{index}"}])

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        reward = self._random.random()
        return Attempt([answer.completion], reward=reward, success=reward > 0.5)
