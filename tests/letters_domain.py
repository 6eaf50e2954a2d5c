"""A domain that a model of any size learns in seconds: answer in digits."""

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem


class LettersDomain(Domain):
    """The reward is the share of digits in the answer; more than half is success."""

    name, train_size, heldout_size = "letters", 1000, 64

    def __init__(self, seed: int):
        self._seed = seed

    def train_problem(self, index: int) -> Problem:
        return Problem(f"train-{index}", [{"role": "user", "content": f"{self._seed} {index}"}])

    def heldout_problem(self, index: int) -> Problem:
        return Problem(f"heldout-{index}", [{"role": "user", "content": f"h {index}"}])

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        reward = self.score(answer.text, problem)
        return Attempt([answer.completion], reward=reward, success=reward > 0.5)

    def score(self, text: str, problem: Problem) -> float:
        return sum(c.isdigit() for c in text) / max(len(text), 1)
