"""Domain: a task of reasoning-gym answered after thinking of any length, for recipes that shape lengths.

An answer is "......=-37": thinking, a mark, and what is judged. So how long the thinking was neither helps
nor harms; what it costs, or how much is asked for, is for a reward to say, or for a domain around this one.

The mark makes the end of thinking a decision of its own. Without it, "no more thinking" and "the first digit"
are one token, and whatever makes right digits likelier makes thinking shorter.
"""

from pipelinerl.domains.base import Attempt, ChatClient, Problem
from pipelinerl.domains.reasoning_gym import SOLVED, ReasoningGym

THOUGHT = "."
MARK = "="


class ThinkingSums(ReasoningGym):
    """Metrics of an attempt: thinking, its length in characters."""

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        reward = self.score(answer.text, problem)
        return Attempt(
            completions=[answer.completion],
            reward=reward,
            success=reward >= SOLVED,
            metrics={"thinking": float(max(answer.text.rfind(MARK), 0))},
        )

    def score(self, text: str, problem: Problem) -> float:
        """The library's score of what follows the last mark; 0 where there is none."""
        _, marked, answer = text.rpartition(MARK)
        return super().score(answer, problem) if marked else 0.0
