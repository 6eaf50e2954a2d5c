"""Chooses the source of each transfer: mostly those that are fast and reliable, and each at times.

The rule is that of SHARDCAST (https://arxiv.org/abs/2505.07291), except that a failed transfer lowers a
source's success alone, never its bandwidth. Nothing here waits, reads a clock or opens a connection.
"""

import hashlib
import math
from collections.abc import Collection, Sequence

from contracts.channel import SourceInfo

ALPHA = 0.3  # of the moving averages
FLOOR = 0.01  # the least weight, as a share of the best one
HEALING = 0.01  # of every source's success, at each pick
FAILED_FACTOR = 0.7
PROBE_BYTES = 2**18  # a source that gave fewer bytes has an unknown speed
PROBES = 2  # transfers at a time from a source of unknown speed, if it is the only one; otherwise one
FAILURES_BEFORE_REST = 3  # in a row
FIRST_REST_S = 0.5
LONGEST_REST_S = 30.0
FIRST_BACKOFF_S = 0.05  # after the first 404
LONGEST_BACKOFF_S = 5.0
MAX_DOUBLINGS = 16


class Source:
    """What is known of one source."""

    def __init__(self, url: str):
        self.url = url
        self.success = 1.0
        self.bytes_per_s = 0.0
        self.bytes = 0  # that came from it in all
        self.failures = 0
        self.running = 0  # transfers
        self.rests_until = 0.0
        self._failures_in_a_row = 0
        self._missing_in_a_row = 0
        self._measured_bytes = 0
        self._measured_s = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough came from it to know its bandwidth."""
        return self._measured_bytes >= PROBE_BYTES

    def succeeded(self, nbytes: int, seconds: float) -> None:
        """Counts a transfer that gave what was asked."""
        self._failures_in_a_row = 0
        self._missing_in_a_row = 0
        self.success += ALPHA * (1 - self.success)
        self._measure(nbytes, max(seconds, 1e-6))

    def failed(self, now: float) -> None:
        """Counts a transfer that gave wrong bytes, or not all of them."""
        self.failures += 1
        self.success *= FAILED_FACTOR
        self._failures_in_a_row += 1
        doublings = self._failures_in_a_row - FAILURES_BEFORE_REST
        if doublings >= 0:
            self.rests_until = now + _doubled(FIRST_REST_S, doublings, LONGEST_REST_S)

    def missed(self, now: float) -> None:
        """Counts a 404. It says nothing about how good the source is: a relay may hold the file later."""
        self.rests_until = now + _doubled(FIRST_BACKOFF_S, self._missing_in_a_row, LONGEST_BACKOFF_S)
        self._missing_in_a_row += 1

    def info(self) -> SourceInfo:
        return SourceInfo(
            url=self.url,
            success=self.success,
            bytes_per_s=self.bytes_per_s,
            bytes=self.bytes,
            failures=self.failures,
        )

    def _measure(self, nbytes: int, seconds: float) -> None:
        """Updates the bandwidth. A small file, whose time is mostly latency, weighs little."""
        if self.is_known:
            share = ALPHA * min(1.0, nbytes / PROBE_BYTES)
            self.bytes_per_s += share * (nbytes / seconds - self.bytes_per_s)
            return
        self._measured_bytes += nbytes
        self._measured_s += seconds
        self.bytes_per_s = self._measured_bytes / self._measured_s


class Sources:
    """The sources of a channel."""

    def __init__(self, urls: Sequence[str]):
        self.all = tuple(Source(url) for url in dict.fromkeys(urls))
        self._probes = PROBES if len(self.all) == 1 else 1

    def pick(self, now: float, name: str, refused: Collection[Source] = ()) -> Source | None:
        """Returns the source for the file `name`, none of those refused.

        None means that a transfer must end first. If all sources rest, the one that rests least is taken.
        """
        for source in self.all:
            source.success = min(1.0, source.success + HEALING)
        asked = [source for source in self.all if source not in refused]
        awake = [source for source in asked if source.rests_until <= now]
        if not awake:
            awake = sorted(asked, key=lambda source: source.rests_until)[:1]
        free = [source for source in awake if source.is_known or source.running < self._probes]
        if not free:
            return None
        weighted = zip(free, self._weights(free), strict=True)
        scores = [_score(source.url, name, weight) for source, weight in weighted]
        return free[scores.index(max(scores))]

    def _weights(self, free: Sequence[Source]) -> list[float]:
        """Returns success times bandwidth. An unknown bandwidth counts as the best that is known."""
        best_speed = max((source.bytes_per_s for source in self.all if source.is_known), default=1.0)
        weights = [s.success * (s.bytes_per_s if s.is_known else best_speed) for s in free]
        best = max(weights)
        if best <= 0:
            return [1.0] * len(free)
        return [max(weight, FLOOR * best) for weight in weights]


def _score(url: str, name: str, weight: float) -> float:
    """Returns how well a source suits a file: weighted rendezvous hashing.

    Over many files a source has the highest score in proportion to its weight. Servers whose sources have the
    same weights ask the same relay for a file, so that the origin sends it once.
    """
    drawn = int.from_bytes(hashlib.sha256(f"{url}\n{name}".encode()).digest()[:8], "little")
    return -weight / math.log((drawn + 1) / (2**64 + 2))


def _doubled(first_s: float, doublings: int, longest_s: float) -> float:
    """Returns a time that doubles with every failure, up to a longest one."""
    return min(longest_s, first_s * 2.0 ** min(doublings, MAX_DOUBLINGS))
