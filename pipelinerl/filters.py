"""Filters select the rollouts of a finished group for the loss. Excluded rollouts are counted by reason.

A filter has a `reason`, any word, and is a callable: (rollouts [G], advantages: G arrays [turns]) -> keep
[G]. A group without a kept rollout is dropped for that reason, and replaced. In other groups, the excluded
rollouts remain in the baseline.
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
    """Drops a group of equal rewards, or with only zero advantages. Other groups fill the step."""

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
    """Drops a group unless 0 < number of right members < G. Other groups fill the step.

    Unlike `ZeroAdvantage` it ignores other terms of the reward, such as those for length.
    Source: dynamic sampling of DAPO, arXiv 2503.14476, §3.2, eq. 11.
    """

    reason = "success_band"
    compares_members = True

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        right = sum(rollout.success == 1.0 for rollout in rollouts)
        return np.full(len(rollouts), 0 < right < len(rollouts))


@dataclass(frozen=True)
class Overlong:
    """Excludes truncated rollouts, which reached the token or time limit (DAPO, arXiv 2503.14476, §3.4)."""

    reason = DropReason.OVERLONG

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([rollout.status != "truncated" for rollout in rollouts])


@dataclass(frozen=True)
class AdvantageRange:
    """Excludes rollouts whose absolute advantage exceeds a limit, as a check of external values.

    The check precedes the normalisation over the step by `StepStd` or `Gdpo`.
    Source: INTELLECT-2, arXiv 2505.07291, sanity checks, value bounds.
    """

    largest: float  # largest absolute advantage

    reason = DropReason.ADVANTAGE_RANGE

    def __post_init__(self):
        if not self.largest > 0:
            raise ValueError(f"largest must be positive, not {self.largest}")

    def __call__(self, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([bool(np.all(np.abs(a) <= self.largest)) for a in advantages])
