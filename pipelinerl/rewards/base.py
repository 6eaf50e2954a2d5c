"""The interface of reward terms, which add to the reward of each member of a complete group.

The actor adds the values of every configured term to `Rollout.reward`, and records them in
`Rollout.reward_components` under the term's name. A term is a pure function of the rollouts. The length L of
a rollout is the number of its sampled tokens, over all turns.

A term that may be negative has `subtracts = True`. A term that depends on the token limit has `max_tokens`.
The launcher refuses a plan that conflicts with either.

To add a term, write a class like these and a test, and add its path under `rewards` in the configuration.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from contracts.records import Rollout

TASK = "task"  # name of the domain's reward, if the domain names no components


class RewardTerm(Protocol):
    name: str

    def __call__(self, rollouts: Sequence[Rollout], version: int) -> np.ndarray:
        """Returns the additions for the G rollouts of a group that have not failed: [G] float64.

        version: the live weight version at the end of the group.
        """


def components_of(rollout: Rollout) -> dict[str, float]:
    """Returns the components of the reward by name; the complete reward as TASK if there are none."""
    return rollout.reward_components or {TASK: rollout.reward}


def lengths(rollouts: Sequence[Rollout]) -> np.ndarray:
    """Returns the lengths in tokens: [G] float64."""
    return np.array([rollout.sampled_tokens for rollout in rollouts], dtype=np.float64)
