"""Domain: a task of reasoning-gym answered after thinking of any length, for recipes that shape lengths.

An answer is "......=-37": thinking, a mark, and the result, which is judged. So the length of the thinking
does not affect the judgement. A reward may penalise length, or a wrapping domain may ask for a length.

The mark makes the end of thinking a separate decision. Without it, "no more thinking" and "the first digit"
would be one token, and training for right digits would also shorten the thinking.
"""

from collections.abc import Mapping
from typing import Any

from extensions.reasoning_gym.domain import ReasoningGym
from pipelinerl.domains.base import Attempt, ChatClient, Problem, judged_attempt

MARK = "="


class ThinkingSums(ReasoningGym):
    """A task whose answer follows the last mark. A text without a mark has no answer.

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
