"""A task of reasoning-gym that is answered after thinking of any length, for rewards of length.

An answer is "......=-37": thinking, a mark, and the result, which alone is judged. The mark makes the end of
thinking a separate token. Otherwise training for right first digits would also shorten the thinking.
"""

from collections.abc import Mapping
from typing import Any

from extensions.reasoning_gym.domain import ReasoningGym
from pipelinerl.domains.base import Attempt, ChatClient, Problem, judged_attempt

MARK = "="


class ThinkingSums(ReasoningGym):
    """A task whose answer follows the last mark. Metric: thinking, its length in characters."""

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: {**options, "after": MARK} for name, options in super().verifiers.items()}

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        attempt = judged_attempt([answer.completion], await self.judged(client, problem, answer.text))
        attempt.metrics["thinking"] = float(max(answer.text.rfind(MARK), 0))
        return attempt
