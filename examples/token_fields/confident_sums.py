"""The sums of the demo, with a confidence in every sampled token."""

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np

from extensions.reasoning_gym.domain import ReasoningGym


class ConfidentSums(ReasoningGym):
    async def rollout(self, client, problem):
        attempt = await super().rollout(client, problem)
        completions = [
            msgspec.structs.replace(c, token_fields={"confidence": confidence(c.token_ids)})
            for c in attempt.completions
        ]
        return replace(attempt, completions=completions)


def confidence(token_ids):
    """Returns [T] float32: 1 for a token that is new in the answer, 1/2 the second time, then 1/3."""
    seen = Counter()
    values = []
    for token in token_ids.tolist():
        seen[token] += 1
        values.append(1 / seen[token])
    return np.array(values, dtype=np.float32)
