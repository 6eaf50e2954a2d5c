"""Chooses the source of each transfer: mostly fast and reliable ones, and the others occasionally.

The rule is that of SHARDCAST (https://arxiv.org/abs/2505.07291), except that a failed transfer lowers only
the source's success, not its bandwidth. Pure logic: callers pass the time.
"""

import hashlib
import math
from collections.abc import Collection, Sequence

from contracts.channel import SourceInfo

ALPHA = 0.3  # weight of a new value in the moving averages
FLOOR = 0.01  # minimum weight, as a share of the best one
HEALING = 0.01  # increase of every source's success at each pick
FAILED_FACTOR = 0.7
PROBE_BYTES = 2**18  # bytes after which a source's bandwidth is known
PROBES = 2  # parallel transfers from a source of unknown bandwidth, if it is the only one; otherwise one
FAILURES_BEFORE_BACKOFF = 3  # in a row
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
FIRST_404_BACKOFF_S = 0.05  # after the first 404
LONGEST_404_BACKOFF_S = 5.0
MAX_DOUBLINGS = 16


class Source:
    """The statistics and backoff of one source."""

    def __init__(self, url: str):
        self.url = url
        self.success = 1.0
        self.bytes_per_s = 0.0
        self.bytes = 0  # total received
        self.failures = 0
        self.running = 0  # number of transfers in progress
        self.backoff_until = 0.0
        self._failures_in_a_row = 0
        self._missing_in_a_row = 0
        self._measured_bytes = 0
        self._measured_s = 0.0

    @property
    def is_known(self) -> bool:
        """True if enough bytes were received to know its bandwidth."""
        return self._measured_bytes >= PROBE_BYTES

    def succeeded(self, nbytes: int, seconds: float) -> None:
        """Counts a successful transfer."""
        self._failures_in_a_row = 0
        self._missing_in_a_row = 0
        self.success += ALPHA * (1 - self.success)
        self._measure(nbytes, max(seconds, 1e-6))

    def failed(self, now: float) -> None:
        """Counts a transfer with wrong or missing bytes."""
        self.failures += 1
        self.success *= FAILED_FACTOR
        self._failures_in_a_row += 1
        doublings = self._failures_in_a_row - FAILURES_BEFORE_BACKOFF
        if doublings >= 0:
            self.backoff_until = now + _doubled(FIRST_BACKOFF_S, doublings, LONGEST_BACKOFF_S)

    def missed(self, now: float) -> None:
        """Counts a 404, without changing the success: a relay may have the file later."""
        self.backoff_until = now + _doubled(
            FIRST_404_BACKOFF_S, self._missing_in_a_row, LONGEST_404_BACKOFF_S
        )
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
        """Updates the bandwidth. Small files have a small weight, because their time is mostly latency."""
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
        """Returns a source for the file `name` that is not in `refused`.

        Returns None if a transfer must end first. If all are in backoff, chooses the one that ends first.
        """
        for source in self.all:
            source.success = min(1.0, source.success + HEALING)
        asked = [source for source in self.all if source not in refused]
        ready = [source for source in asked if source.backoff_until <= now]
        if not ready:
            ready = sorted(asked, key=lambda source: source.backoff_until)[:1]
        free = [source for source in ready if source.is_known or source.running < self._probes]
        if not free:
            return None
        weighted = zip(free, self._weights(free), strict=True)
        scores = [_score(source.url, name, weight) for source, weight in weighted]
        return free[scores.index(max(scores))]

    def _weights(self, free: Sequence[Source]) -> list[float]:
        """Returns success times bandwidth. An unknown bandwidth counts as the best known one."""
        best_speed = max((source.bytes_per_s for source in self.all if source.is_known), default=1.0)
        weights = [s.success * (s.bytes_per_s if s.is_known else best_speed) for s in free]
        best = max(weights)
        if best <= 0:
            return [1.0] * len(free)
        return [max(weight, FLOOR * best) for weight in weights]


def _score(url: str, name: str, weight: float) -> float:
    """Returns the score of a source for a file, by weighted rendezvous hashing.

    A source has the highest score for a share of the files proportional to its weight. Servers with the same
    weights choose the same relay for a file, so that the origin sends the file once.
    """
    drawn = int.from_bytes(hashlib.sha256(f"{url}\n{name}".encode()).digest()[:8], "little")
    return -weight / math.log((drawn + 1) / (2**64 + 2))


def _doubled(first_s: float, doublings: int, longest_s: float) -> float:
    """Returns an exponentially growing pause: `first_s * 2 ** doublings`, at most `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(doublings, MAX_DOUBLINGS))
