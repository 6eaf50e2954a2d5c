"""How long the rest of a run will take, judged by its last steps. Pure.

Steps become slower as answers grow longer or as more groups are dropped, and quicker as answers grow shorter.
So a trend in the last steps is continued, for as many steps as it has been seen; after them the pace stays.
It never makes steps quicker than twice the present pace.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean

STEPS = 30  # that the rest is judged by
FEWEST = 8  # of which a trend is looked for
CLEAR = 2.0  # standard errors that a trend must be away from none


def time_left(ends: Sequence[tuple[int, float]], max_steps: int, now: float) -> float | None:
    """Returns the seconds until `max_steps` steps are made; None before two ends are known.

    ends: the last steps in order, each with the unix seconds at which it ended.
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
    """Returns the seconds that each of the next steps will take, as many steps as there are recent ones."""
    change = trend(recent)
    newest = max(fmean(recent) + change * (len(recent) - 1) / 2, min(recent))
    return [max(newest / 2, newest + change * ahead) for ahead in range(1, len(recent) + 1)]


def trend(values: Sequence[float]) -> float:
    """Returns by how much each value exceeds the one before: a least-squares slope, 0 if not clear."""
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
