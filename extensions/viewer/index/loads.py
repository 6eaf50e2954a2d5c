"""Divides the time of requests among seconds, servers and weight versions, for timelines of many requests."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from extensions.viewer.index.slim import SlimCompletion

Load = tuple[int, str, int, float]  # (unix second, server's URL, version, seconds that requests took in it)
MOST_SECONDS = 86_400  # of a request; a longer one has a clock that was set


def loads_of(completions: Iterable[SlimCompletion]) -> list[Load]:
    """Returns the time that requests took. Assumes that the tokens of a request are evenly spaced."""
    busy: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for completion in completions:
        took = completion.ended - completion.began
        if 0 < took < MOST_SECONDS and completion.tokens:
            each = took / completion.tokens
            for span in completion.spans:
                begin = completion.began + span.start * each
                busy[completion.server, span.version].append((begin, completion.began + span.end * each))
    return [
        (second, url, version, seconds)
        for (url, version), intervals in busy.items()
        for second, seconds in _by_second(np.array(intervals))
    ]


def _by_second(intervals: np.ndarray) -> Iterable[tuple[int, float]]:
    """Returns the seconds that the intervals [N, 2] are in, each with the total time that they are in it."""
    first = int(intervals.min())
    begins, ends = (intervals - first).T
    counts = np.floor(ends).astype(int) - np.floor(begins).astype(int) + 1  # seconds of each interval
    which = np.repeat(np.arange(len(begins)), counts)
    nth = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    seconds = np.floor(begins).astype(int)[which] + nth
    shares = np.minimum(ends[which], seconds + 1) - np.maximum(begins[which], seconds)
    sums = np.bincount(seconds, weights=shares)
    return [(first + second, float(sums[second])) for second in np.flatnonzero(sums).tolist()]
