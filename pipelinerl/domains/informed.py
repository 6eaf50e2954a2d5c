"""Domain: the problems of another domain, of which the reference server sees more than the model.

The model's own tokens are scored after a prompt that has the answer, a hint, or whatever `Problem.data` has.
With `objective=distillation` the reference then teaches what the model would say if it knew. That is
self-distillation where the reference has the model that the run began with, or a renewed one.
Source: SDFT, arXiv 2601.19897; SDPO, arXiv 2601.20802, where the hint is feedback on an earlier attempt.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np

from contracts.records import Completion
from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem, Wrapped

PLACEHOLDERS = ("{prompt}", "{told}")
PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDERS)))


class Informed(Wrapped):
    """A domain that tells the reference more.

    domain: the wrapped domain, which has its own seed.
    template: template of the last user message as the reference sees it; {prompt} stands for the original
        message, {told} for what it is told.
    field: the key of `Problem.data` under which that is.
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
        """Returns the problem's messages as the reference sees them. Raises ValueError without the field."""
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
    """Returns the completion with `prompt` for the reference, in the place of `before`, its opening prompt.

    What follows that prompt, such as earlier turns, stays. A conversation that was begun anew keeps its own.
    """
    own = completion.prompt_token_ids
    if not np.array_equal(own[: len(before)], before):
        return completion
    informed = np.array([*prompt, *own[len(before) :]], dtype=np.int32)
    return msgspec.structs.replace(completion, reference_prompt=informed)
