"""How long a run ran, summed over its launches. Pure.

A launch that was killed leaves no note of its end. So an earlier launch counts from the first thing that it
recorded to the last, and the time between two launches does not count.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Launch(NamedTuple):
    """The launch whose launcher asks, in unix seconds."""

    began: float
    ended: float


class WallTime:
    """resumed_at: the unix seconds at which the run was resumed, in order."""

    def __init__(self, resumed_at: Sequence[float] = ()):
        self._resumed_at = resumed_at
        self._extents: dict[int, tuple[float, float]] = {}  # resumptions before -> first and last moment

    def observe(self, moment: float) -> None:
        """Takes the unix seconds at which something was recorded, in any order."""
        launch = bisect_right(self._resumed_at, moment)
        first, last = self._extents.get(launch, (moment, moment))
        self._extents[launch] = min(first, moment), max(last, moment)

    def seconds(self, present: Launch | None = None) -> float | None:
        """Returns the seconds of all launches; None if nothing is known.

        present: counts by its own clock, and by nothing that was recorded since it began.
        """
        extents = self._extents.values()
        if present is None:
            return sum(last - first for first, last in extents) if extents else None
        earlier = sum(last - first for first, last in extents if first < present.began)
        return earlier + present.ended - present.began
