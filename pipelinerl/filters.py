"""Filters: which rollouts of a finished group are worth training on. Excluded rollouts are counted by reason.

A filter has a `reason` and is a callable: (rollouts [G], advantages: G arrays, each [turns]) -> keep [G].
A group in which no rollout is kept is dropped for that reason, and replaced. In other groups, the rollouts
that are not kept stay in the baseline but leave the loss. Your own filter may have its own reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

import numpy as np

from contracts.records import DropReason, Rollout


class GroupFilter(Protocol):
    reason: str

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray: ...


DECIMALS = 6  # sums of several terms are equal only up to rounding


@dataclass(frozen=True)
class ZeroAdvantage:
    """Drops a group whose rewards are all equal, or whose advantages are all 0.

    Sampling continues until other groups fill the step. DAPO (arXiv 2503.14476, §3.2) compares success
    instead of rewards: `SuccessBand`.
    """

    reason = DropReason.ZERO_ADVANTAGE
    compares_members = True

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        earned = [(r.reward, *r.turn_rewards) for r in rollouts]
        rounded = iter(np.round(list(chain.from_iterable(earned)), DECIMALS).tolist())
        distinct = {tuple(islice(rounded, len(of_rollout))) for of_rollout in earned}
        has_signal = len(distinct) > 1 and any(np.any(of_rollout) for of_rollout in advantages)
        return np.full(len(rollouts), has_signal)


@dataclass(frozen=True)
class SuccessBand:
    """Drops a group unless some of its members are right and others are not: 0 < right members < G.

    Sampling continues until other groups fill the step (DAPO, arXiv 2503.14476, eq. 11). Unlike
    `ZeroAdvantage` it does not look at terms of the reward beside success, such as those for length.
    """

    reason = "success_band"
    compares_members = True

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        right = sum(rollout.success == 1.0 for rollout in rollouts)
        return np.full(len(rollouts), 0 < right < len(rollouts))


@dataclass(frozen=True)
class Overlong:
    """Leaves truncated rollouts out of the loss, because their complete answers are not known.

    They reached the token limit or the time limit (DAPO, arXiv 2503.14476, §3.4).
    """

    reason = DropReason.OVERLONG

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([rollout.status != "truncated" for rollout in rollouts])


@dataclass(frozen=True)
class AdvantageRange:
    """Leaves rollouts out of the loss whose advantage is larger than their rewards allow.

    It is a sanity check of values from external sources (INTELLECT-2, arXiv 2505.07291, sanity checks: value
    bounds). It sees advantages before `StepStd` or `Gdpo` normalises them over the step.
    """

    largest: float  # largest absolute advantage

    reason = DropReason.ADVANTAGE_RANGE

    def __post_init__(self):
        if not self.largest > 0:
            raise ValueError(f"largest must be positive, not {self.largest}")

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([bool(np.all(np.abs(a) <= self.largest)) for a in advantages])
