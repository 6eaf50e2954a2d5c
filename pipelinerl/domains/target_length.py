"""A domain that wraps another one and asks in each prompt for an answer of a certain length.

Source: INTELLECT-2, arXiv 2505.07291, length rewards; L1, arXiv 2503.04697. `rewards/target_length.py`
penalises the distance to the length. The wrapped domain judges answers as usual.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem
from pipelinerl.domains.wrapped import Wrapped


class TargetLength(Wrapped):
    """States a target length in each prompt. The length depends only on the seed and the problem id.

    domain: the wrapped domain.
    lengths: lengths to choose from, in sampled tokens, including the end-of-sequence token.
    template: template of the last user message; {prompt} is the original message, {length} the length.
    seed: the run's seed; the wrapped domain already has its own.

    Metrics of an attempt: target_length, and target_length_error, the distance to it in tokens.
    """

    def __init__(self, domain: Domain, lengths: Sequence[int], template: str, seed: int = 0) -> None:
        if not lengths or not all(isinstance(n, int) and n > 0 for n in lengths):
            raise ValueError(f"lengths must be whole numbers of tokens, at least one, not {list(lengths)}")
        for name in ("{prompt}", "{length}"):
            if name not in template:
                raise ValueError(f"template {template!r} does not contain {name}")
        super().__init__(domain)
        self._lengths = list(lengths)
        self._template = template
        self._seed = seed

    def train_problem(self, index: int) -> Problem:
        return self._stating_length(self._domain.train_problem(index))

    def heldout_problem(self, index: int) -> Problem:
        return self._stating_length(self._domain.heldout_problem(index))

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        attempt = await self._domain.rollout(client, problem)
        target = self.target_length(problem)
        sampled = sum(len(completion.token_ids) for completion in attempt.completions)
        metrics = {"target_length": float(target), "target_length_error": float(abs(target - sampled))}
        return replace(attempt, metrics=attempt.metrics | metrics)

    def target_length(self, problem: Problem) -> int:
        return random.Random(f"{self._seed}/{problem.problem_id}").choice(self._lengths)

    def _stating_length(self, problem: Problem) -> Problem:
        messages = list(problem.messages)
        of_user = [place for place, message in enumerate(messages) if message["role"] == "user"]
        if not of_user:
            raise ValueError(f"problem {problem.problem_id} has no user message to state a length in")
        last = messages[of_user[-1]]
        # The prompt is inserted last, because it may contain braces.
        content = self._template.replace("{length}", str(self.target_length(problem)))
        messages[of_user[-1]] = last | {"content": content.replace("{prompt}", last["content"])}
        return replace(problem, messages=messages)
