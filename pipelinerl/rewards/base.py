"""The interface of reward terms. A term is an addition to each member's reward, computed from all the group.

The actor calls every configured term when a group is complete. It adds the returned values to
`Rollout.reward`, and records them in `Rollout.reward_components` under the term's name. A term is a pure
function of the rollouts' records. The length L of a rollout is its number of sampled tokens, over all turns.

A term that may be negative has `subtracts = True`. A term that depends on the token limit has `max_tokens`.
The launcher refuses a plan that conflicts with either.

To add a term, write a class like these and a test, and add its path under `rewards` in the configuration.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from contracts.records import Rollout

TASK = "task"  # component of the domain's own reward, if the domain names no components


class RewardTerm(Protocol):
    name: str

    def __call__(self, rollouts: Sequence[Rollout], version: int) -> np.ndarray:
        """Returns the additions for the group's rollouts, without failed ones: [G] float64.

        `version` is the weight version that was live when the group ended.
        """


def components_of(rollout: Rollout) -> dict[str, float]:
    """Returns the components of the reward, by name. A reward without components is one of its own."""
    return rollout.reward_components or {TASK: rollout.reward}


def lengths(rollouts: Sequence[Rollout]) -> np.ndarray:
    """Returns the lengths in tokens: [G] float64."""
    return np.array([rollout.sampled_tokens for rollout in rollouts], dtype=np.float64)
