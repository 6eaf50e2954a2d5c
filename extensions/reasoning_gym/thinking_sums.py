"""Domain: a task of reasoning-gym answered after thinking, for recipes that control answer lengths.

An answer such as "......=-37" has thinking, a mark and the result. Only the result is judged, so rewards and
wrapping domains may shape the length of the thinking.

The mark makes the end of thinking a separate decision. Without it, that decision and the first digit would be
one token, so training for right digits would also shorten the thinking.
"""

from collections.abc import Mapping
from typing import Any

from extensions.reasoning_gym.domain import ReasoningGym
from pipelinerl.domains.base import Attempt, ChatClient, Problem, judged_attempt

MARK = "="


class ThinkingSums(ReasoningGym):
    """A task whose answer follows the last mark. Metrics: thinking (its length in characters)."""

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: {**options, "after": MARK} for name, options in super().verifiers.items()}

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        attempt = judged_attempt([answer.completion], await self.judged(client, problem, answer.text))
        attempt.metrics["thinking"] = float(max(answer.text.rfind(MARK), 0))
        return attempt
