"""Computes the wall time of a run, summed over its incarnations. Pure.

A killed launcher leaves no record of its end. So an earlier incarnation counts from its first record to its
last one.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Launch(NamedTuple):
    """The start and end of a launcher, in unix seconds."""

    began: float
    ended: float


class WallTime:
    """The times of a run's records. resumed_at: the times of its resumptions in order, in unix seconds."""

    def __init__(self, resumed_at: Sequence[float] = ()):
        self._resumed_at = resumed_at
        self._extents: dict[int, tuple[float, float]] = {}  # resumptions before -> first and last moment

    def observe(self, moment: float) -> None:
        """Adds the time of a record, in unix seconds. Times may be in any order."""
        launch = bisect_right(self._resumed_at, moment)
        first, last = self._extents.get(launch, (moment, moment))
        self._extents[launch] = min(first, moment), max(last, moment)

    def seconds(self, present: Launch | None = None) -> float | None:
        """Returns the seconds of all incarnations, or None without records.

        present: the launcher that calls; its times replace those of the records since its start.
        """
        extents = self._extents.values()
        if present is None:
            return sum(last - first for first, last in extents) if extents else None
        earlier = sum(last - first for first, last in extents if first < present.began)
        return earlier + present.ended - present.began
