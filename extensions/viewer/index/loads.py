"""Divides the time of requests among seconds, servers and weight versions, for timelines of many requests."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from extensions.viewer.index.slim import SlimCompletion

# (length and begin of a bin in unix seconds, server's URL, version, seconds that requests took in it)
Load = tuple[int, int, str, int, float]
MINUTE = 60
LONGEST_S = 86_400.0  # of a request; the clock of a longer one was set
LATEST = 2.0**40  # unix seconds


def loads_of(completions: Iterable[SlimCompletion]) -> list[Load]:
    """Returns the time that requests took, by second and by minute. Assumes evenly spaced tokens.

    Requests whose times cannot be are left out.
    """
    busy: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for completion in completions:
        took = completion.ended - completion.began
        if 0 < took < LONGEST_S and 0 <= completion.began < LATEST and completion.tokens:
            each = took / completion.tokens
            for span in completion.spans:
                begin = completion.began + span.start * each
                busy[completion.server, span.version].append((begin, completion.began + span.end * each))
    return [
        (length, second, url, version, seconds)
        for (url, version), intervals in busy.items()
        for length in (1, MINUTE)
        for second, seconds in _by_bin(np.array(intervals), length)
    ]


def _by_bin(intervals: np.ndarray, length: int) -> Iterator[tuple[int, float]]:
    """Yields the bins that the intervals [N, 2] are in, each with the total time that they are in it."""
    begins, ends = intervals.T / length
    first = np.floor(begins).astype(np.int64)
    counts = np.maximum(np.floor(ends).astype(np.int64) - first + 1, 0)  # bins of each interval
    which = np.repeat(np.arange(len(begins)), counts)
    bins = first[which] + np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    shares = np.minimum(ends[which], bins + 1) - np.maximum(begins[which], bins)
    present, places = np.unique(bins, return_inverse=True)
    for at, share in zip(present.tolist(), np.bincount(places, weights=shares).tolist(), strict=True):
        if share > 0:
            yield at * length, share * length
