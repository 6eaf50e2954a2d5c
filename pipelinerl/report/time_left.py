"""Estimates the remaining time of a run from its last steps. Pure.

Steps become slower as answers grow longer or more groups are dropped, and faster as answers grow shorter. So
a trend of the last steps is extrapolated over as many further steps, up to twice the present pace. After them
the pace is constant.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean

STEPS = 30  # last steps used for the estimate
FEWEST = 8  # steps needed for a trend
CLEAR = 2.0  # standard errors by which a trend must differ from 0


def time_left(ends: Sequence[tuple[int, float]], max_steps: int, now: float) -> float | None:
    """Returns the seconds until `max_steps` steps are complete, or None with fewer than two ends.

    ends: (step, end in unix seconds) of the last steps, in order.
    """
    if len(ends) < 2:
        return None
    last, ended = ends[-1]
    left = max_steps - last
    if left <= 0:
        return 0.0
    recent = [(end - begin) / (step - before) for (before, begin), (step, end) in pairwise(ends)]
    expected = expected_seconds(recent)
    known = expected[:left]
    rest = sum(known) + (left - len(known)) * expected[-1]
    return rest - min(max(now - ended, 0.0), expected[0])


def expected_seconds(recent: Sequence[float]) -> list[float]:
    """Returns the expected seconds of each of the next `len(recent)` steps."""
    change = trend(recent)
    newest = max(fmean(recent) + change * (len(recent) - 1) / 2, min(recent))
    return [max(newest / 2, newest + change * ahead) for ahead in range(1, len(recent) + 1)]


def trend(values: Sequence[float]) -> float:
    """Returns the least-squares slope of the values, or 0 if it is not significant."""
    count = len(values)
    if count < FEWEST:
        return 0.0
    middle = (count - 1) / 2
    mean = fmean(values)
    spread = count * (count**2 - 1) / 12
    slope = sum((place - middle) * value for place, value in enumerate(values)) / spread
    misses = [value - mean - slope * (place - middle) for place, value in enumerate(values)]
    error = sqrt(sum(miss**2 for miss in misses) / (count - 2) / spread)
    return slope if abs(slope) > CLEAR * error else 0.0
