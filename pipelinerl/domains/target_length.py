"""Domain: the problems of another one, each with a length that its prompt asks the answer to have.

The lengths come from a small set, as in INTELLECT-2 (arXiv 2505.07291, length rewards; the idea is L1's,
arXiv 2503.04697). How well they are kept is for a reward to say (`rewards/target_length.py`): the wrapped
domain judges answers as it does without this one.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem, Wrapped


class TargetLength(Wrapped):
    """A problem's length follows from seed and problem id alone.

    domain: the one that is wrapped; it brings its own seed.
    lengths: to choose from, in sampled tokens, end-of-sequence included.
    template: what becomes of the last user message; {prompt} and {length} stand for what it was, and for
        the length.

    Metrics of an attempt: target_length, and target_length_error: by how many tokens it was missed.
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
        # A prompt may hold braces of its own, and is put in last.
        content = self._template.replace("{length}", str(self.target_length(problem)))
        messages[of_user[-1]] = last | {"content": content.replace("{prompt}", last["content"])}
        return replace(problem, messages=messages)
