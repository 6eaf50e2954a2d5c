"""A domain that wraps another one and gives the reference server a prompt with more information.

The reference scores the model's tokens after a prompt that contains the answer, a hint, or another field of
`Problem.data`. With `objective=distillation` the model learns to answer without that information as it would
with it. This is self-distillation if the reference is the start model or an earlier policy.
Source: SDFT, arXiv 2601.19897; SDPO, arXiv 2601.20802, where the hint is feedback on an earlier attempt.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np

from contracts.records import Completion
from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem
from pipelinerl.domains.wrapped import Wrapped

PLACEHOLDERS = ("{prompt}", "{told}")
PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDERS)))


class Informed(Wrapped):
    """Adds a `reference_prompt` to every completion of the wrapped domain.

    domain: the wrapped domain.
    template: template of the last user message in the reference's prompt; {prompt} is the original message,
        {told} the additional information.
    field: the key of the additional information in `Problem.data`.
    seed: the run's seed; the wrapped domain already has its own.
    """

    def __init__(self, domain: Domain, template: str, field: str, seed: int = 0):
        for name in PLACEHOLDERS:
            if name not in template:
                raise ValueError(f"template {template!r} does not contain {name}")
        super().__init__(domain)
        self.informs_reference = True
        self._template = template
        self._field = field

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        attempt = await self._domain.rollout(client, problem)
        if not attempt.completions:
            return attempt
        prompt = await client.prompt_of(self._informed(problem))
        before = attempt.completions[0].prompt_token_ids
        informed = [_after(completion, before, prompt) for completion in attempt.completions]
        return replace(attempt, completions=informed)

    def _informed(self, problem: Problem) -> list[dict[str, str]]:
        """Returns the messages of the reference's prompt. Raises ValueError if `data` lacks the field."""
        if not isinstance(problem.data, Mapping) or self._field not in problem.data:
            raise ValueError(f"problem {problem.problem_id} has no {self._field} in its data")
        messages = list(problem.messages)
        of_user = [place for place, message in enumerate(messages) if message["role"] == "user"]
        if not of_user:
            raise ValueError(f"problem {problem.problem_id} has no user message to inform")
        last = messages[of_user[-1]]
        parts = {"{prompt}": last["content"], "{told}": str(problem.data[self._field])}
        content = PLACEHOLDER.sub(lambda found: parts[found[0]], self._template)
        messages[of_user[-1]] = last | {"content": content}
        return messages


def _after(completion: Completion, before: np.ndarray, prompt: list[int]) -> Completion:
    """Returns the completion with a reference prompt, in which `prompt` replaces `before`, the first prompt.

    Tokens after it, such as earlier turns, are kept. A completion with another first prompt is unchanged.
    """
    own = completion.prompt_token_ids
    if not np.array_equal(own[: len(before)], before):
        return completion
    informed = np.array([*prompt, *own[len(before) :]], dtype=np.int32)
    return msgspec.structs.replace(completion, reference_prompt=informed)
