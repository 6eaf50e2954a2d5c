"""What a reward term is: an addition to the reward of each member of a group, seen from the whole group.

The actor calls every configured term when a group is complete. It adds what the term returns to
`Rollout.reward`, and records it in `Rollout.reward_components` under the term's name. A term is pure and
knows of a rollout only what the record says. The length L of a rollout is that of what it sampled, over all
its turns.

A term that may be negative has `subtracts = True`. One that depends on the token limit has `max_tokens`. A
plan in which either cannot be is refused.

A new one is a class like these, one test, and its path under `rewards` in the configuration.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from contracts.records import Rollout


class RewardTerm(Protocol):
    name: str

    def __call__(self, rollouts: Sequence[Rollout], version: int) -> np.ndarray:
        """[G] float64: for each of the group's rollouts that did not fail. `version`: of the weights that
        were live when the group ended."""


def lengths(rollouts: Sequence[Rollout]) -> np.ndarray:
    """[G] float64, tokens"""
    return np.array([rollout.sampled_tokens for rollout in rollouts], dtype=np.float64)
