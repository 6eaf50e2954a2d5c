"""Domain: a task of reasoning-gym answered after thinking of any length, for recipes that shape lengths.

An answer is "......=-37": thinking, a mark, and what is judged. So the length of the thinking neither helps
nor harms. What it costs, or how much is asked for, is decided by a reward, or by a domain around this one.

The mark makes the end of thinking a decision of its own. Without it, "no more thinking" and "the first digit"
are one token, and whatever makes right digits likelier makes thinking shorter.
"""

from collections.abc import Mapping
from typing import Any

from pipelinerl.domains.base import Attempt, ChatClient, Problem, judged_attempt
from pipelinerl.domains.reasoning_gym import ReasoningGym

THOUGHT = "."
MARK = "="


class ThinkingSums(ReasoningGym):
    """What follows the last mark is judged; without one there is no answer.

    Metrics of an attempt: thinking, its length in characters.
    """

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: {**options, "after": MARK} for name, options in super().verifiers.items()}

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        attempt = judged_attempt([answer.completion], await self.judged(client, problem, answer.text))
        attempt.metrics["thinking"] = float(max(answer.text.rfind(MARK), 0))
        return attempt
