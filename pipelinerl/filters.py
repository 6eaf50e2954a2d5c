"""Filters: which finished groups are not worth training on. A dropped group is named, and replaced.

A filter is a callable: (rollouts of the group, advantages [G]) -> DropReason or None.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.records import DropReason, Rollout


@dataclass(frozen=True)
class ZeroAdvantage:
    """Drops a group whose rewards are all equal: it has no gradient (DAPO, arXiv 2503.14476, §3.2)."""

    def __call__(self, rollouts: Sequence[Rollout], advantages: np.ndarray) -> DropReason | None:
        return None if np.any(advantages != 0) else DropReason.ZERO_ADVANTAGE
