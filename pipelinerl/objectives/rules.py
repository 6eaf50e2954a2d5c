"""Rules of `masked`: factors of loss weights, by the distance between behaviour and trained policy.

A rule is a callable: (log ρ, batch) -> Factor. log ρ is [T], without gradient, and 0 for tokens that are not
in the loss. ρ is at most e^20. Names are those of TRL and verl; their sequence is a rollout here, with all of
its sequences. To add a rule, write a class like these.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from contracts.trainer import PackedBatch
from pipelinerl.objectives.base import per_rollout, ratio, rollout_lengths, rollout_minimum


class Factor(NamedTuple):
    """The factors of a rule. bound: True for tokens that the rule has truncated or masked."""

    values: torch.Tensor  # [T], at least 0
    bound: torch.Tensor  # [T] bool


class Rule(Protocol):
    name: str  # suffix of the metric `masked_<name>`
    of_rollout: bool  # True if all tokens of a rollout have the same factor
    weighs: bool  # True if the factor contains ρ, and is not only 0 or 1

    def __call__(self, log_rho: torch.Tensor, batch: PackedBatch) -> Factor: ...


def _truncated(log_rho: torch.Tensor, high: float) -> Factor:
    rho = ratio(log_rho)
    return Factor(rho.clamp(max=high), rho > high)


def _masked(log_rho: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return (log_rho < math.log(low)) | (log_rho > math.log(high))


def _weighed_within(log_rho: torch.Tensor, low: float, high: float) -> Factor:
    outside = _masked(log_rho, low, high)
    return Factor(ratio(log_rho).masked_fill(outside, 0.0), outside)


def _check_bounds(low: float, high: float) -> None:
    if not 0 < low < 1 < high < math.inf:
        raise ValueError(f"a mask needs 0 < low < 1 < high, not {low} and {high}")


def _check_cap(high: float) -> None:
    if not 1 <= high < math.inf:
        raise ValueError(f"high must be 1 or more, not {high}")


@dataclass(frozen=True)
class TokenTruncate:
    """f = min(ρ, high) for each token: truncated importance sampling (TIS)."""

    name = "token_truncate"
    of_rollout = False
    weighs = True

    high: float

    def __post_init__(self):
        _check_cap(self.high)

    def __call__(self, log_rho: torch.Tensor, batch: PackedBatch) -> Factor:
        return _truncated(log_rho, self.high)


@dataclass(frozen=True)
class TokenMask:
    """f = ρ if low ≤ ρ ≤ high, else 0, for each token: masked importance sampling (MIS)."""

    name = "token_mask"
    of_rollout = False
    weighs = True

    low: float
    high: float

    def __post_init__(self):
        _check_bounds(self.low, self.high)

    def __call__(self, log_rho: torch.Tensor, batch: PackedBatch) -> Factor:
        return _weighed_within(log_rho, self.low, self.high)


@dataclass(frozen=True)
class SequenceTruncate:
    """f = min(ρ, high) for the product ρ of a rollout's token ratios."""

    name = "sequence_truncate"
    of_rollout = True
    weighs = True

    high: float

    def __post_init__(self):
        _check_cap(self.high)

    def __call__(self, log_rho: torch.Tensor, batch: PackedBatch) -> Factor:
        return _truncated(per_rollout(log_rho, batch)[batch.rollout_ids], self.high)


@dataclass(frozen=True)
class SequenceMask:
    """f = ρ if low ≤ ρ ≤ high, else 0, for the product ρ of a rollout's token ratios."""

    name = "sequence_mask"
    of_rollout = True
    weighs = True

    low: float
    high: float

    def __post_init__(self):
        _check_bounds(self.low, self.high)

    def __call__(self, log_rho: torch.Tensor, batch: PackedBatch) -> Factor:
        return _weighed_within(per_rollout(log_rho, batch)[batch.rollout_ids], self.low, self.high)


@dataclass(frozen=True)
class GeometricMask:
    """f = 1 if low ≤ ρ ≤ high, else 0, for the geometric mean ρ of a rollout's token ratios (Geo-RS)."""

    name = "geometric_mask"
    of_rollout = True
    weighs = False

    low: float
    high: float

    def __post_init__(self):
        _check_bounds(self.low, self.high)

    def __call__(self, log_rho: torch.Tensor, batch: PackedBatch) -> Factor:
        means = per_rollout(log_rho, batch) / rollout_lengths(batch)
        return _kept(~_masked(means, self.low, self.high)[batch.rollout_ids], log_rho)


@dataclass(frozen=True)
class SmallestRatio:
    """f = 0 for a rollout that has a token with ρ < low, else 1.

    Source: INTELLECT-3, arXiv 2512.16144, §3.3 (low = 1e-5), where it is combined with icepop.
    """

    name = "smallest_ratio"
    of_rollout = True
    weighs = False

    low: float

    def __post_init__(self):
        if not 0 < self.low < 1:
            raise ValueError(f"low must be between 0 and 1, not {self.low}")

    def __call__(self, log_rho: torch.Tensor, batch: PackedBatch) -> Factor:
        least = rollout_minimum(log_rho, batch)
        return _kept((least >= math.log(self.low))[batch.rollout_ids], log_rho)


@dataclass(frozen=True)
class OffPolicySequence:
    """f = 0 for a rollout with a mean A < 0 and a mean of −log ρ above delta, else 1.

    Source: DeepSeek-V3.2, arXiv 2512.02556, §3.1, off-policy sequence masking.
    """

    name = "off_policy_sequence"
    of_rollout = True
    weighs = False

    delta: float  # nats

    def __post_init__(self):
        if not 0 < self.delta < math.inf:
            raise ValueError(f"delta must be positive, not {self.delta}")

    def __call__(self, log_rho: torch.Tensor, batch: PackedBatch) -> Factor:
        lengths = rollout_lengths(batch)
        is_near = per_rollout(-log_rho, batch) / lengths <= self.delta
        is_good = per_rollout(batch.advantages, batch) / lengths >= 0
        return _kept((is_good | is_near)[batch.rollout_ids], log_rho)


def _kept(kept: torch.Tensor, like: torch.Tensor) -> Factor:
    return Factor(kept.to(like.dtype), ~kept)
