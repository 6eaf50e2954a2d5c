"""Smooths noisy metrics to levels, and detects growth and collapse. Pure state."""

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np


class Level:
    """The level of a metric: the median of its last `window` values. With fewer values there is none."""

    def __init__(self, window: int):
        self._values: deque[float] = deque(maxlen=window)
        self._overlapping: deque[float] = deque(maxlen=window)  # levels that share values with the last
        self.first = math.nan
        self.lowest = math.inf  # lowest level that shares no value with the current one

    def push(self, value: float) -> None:
        self._values.append(value)
        if len(self._values) < self._values.maxlen:
            return
        if len(self._overlapping) == self._overlapping.maxlen:
            self.lowest = min(self.lowest, self._overlapping[0])
        self._overlapping.append(float(np.median(self._values)))
        if math.isnan(self.first):
            self.first = self.now

    @property
    def exists(self) -> bool:
        return bool(self._overlapping)

    @property
    def now(self) -> float:
        return self._overlapping[-1]

    @property
    def rises(self) -> bool:
        """True if the medians of the three thirds of the last window ascend strictly."""
        thirds = [np.median(part) for part in np.array_split(self._values, 3)]
        return all(earlier < later for earlier, later in pairwise(thirds))


class Rule(Protocol):
    """The conditions of an alarm's begin and end. A margin between them prevents noise from toggling it."""

    def begins(self, level: Level) -> bool: ...

    def ends(self, level: Level) -> bool: ...


@dataclass(frozen=True)
class Growth:
    """Begins when the level is above T = max(growth · lowest, floor) and rises, and lowest ≤ (1 − fall) ·
    first. Ends when the level is below (1 − margin) · T.
    """

    growth: float
    floor: float
    margin: float
    fall: float = 0.0  # decrease, as a share of the first level

    def begins(self, level: Level) -> bool:
        fallen = level.lowest <= (1 - self.fall) * level.first
        return fallen and level.now > self._threshold(level) and level.rises

    def ends(self, level: Level) -> bool:
        return level.now < (1 - self.margin) * self._threshold(level)

    def _threshold(self, level: Level) -> float:
        return max(self.growth * level.lowest, self.floor)


@dataclass(frozen=True)
class Collapse:
    """Begins when the level is below the floor; ends when it is above (1 + margin) · floor."""

    floor: float
    margin: float

    def begins(self, level: Level) -> bool:
        return level.now < self.floor

    def ends(self, level: Level) -> bool:
        return level.now > (1 + self.margin) * self.floor
