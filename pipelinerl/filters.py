"""Filters: which rollouts of a finished group are worth training on. What is left out is named and counted.

A filter has a `reason` and is a callable: (rollouts of the group, advantages [G] of [turns]) -> keep [G].
A group of which nothing is kept is dropped for that reason, and replaced. In other groups, the rollouts that
are not kept stay in the baseline and leave the loss. A filter of your own brings a reason of its own.
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
    """Drops a group whose rewards are all equal: compared with each other, they teach nothing. Sampling
    continues until other groups fill the step (DAPO, arXiv 2503.14476, §3.2, which asks for equal
    success)."""

    reason = DropReason.ZERO_ADVANTAGE

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        earned = [(r.reward, *r.turn_rewards) for r in rollouts]
        rounded = iter(np.round(list(chain.from_iterable(earned)), DECIMALS).tolist())
        distinct = {tuple(islice(rounded, len(of_rollout))) for of_rollout in earned}
        return np.full(len(rollouts), len(distinct) > 1)


@dataclass(frozen=True)
class Overlong:
    """Leaves truncated rollouts out of the loss, because what they would have said is not known.

    They ran into the token limit or out of time (DAPO, arXiv 2503.14476, §3.4).
    """

    reason = DropReason.OVERLONG

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([rollout.status != "truncated" for rollout in rollouts])


@dataclass(frozen=True)
class AdvantageRange:
    """Leaves rollouts out of the loss whose advantage is larger than rewards can explain. It checks values
    that come from elsewhere (INTELLECT-2, arXiv 2505.07291, sanity checks: value bounds).
    """

    largest: float  # absolute

    reason = DropReason.ADVANTAGE_RANGE

    def __post_init__(self):
        if not self.largest > 0:
            raise ValueError(f"largest must be positive, not {self.largest}")

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([bool(np.all(np.abs(a) <= self.largest)) for a in advantages])
