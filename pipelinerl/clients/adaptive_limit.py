"""Finds how many requests a server should get at a time. Pure state, no I/O; times are the caller's.

A higher limit and a lower one are tried by turns, and the server's speeds are compared. One more request must
be worth at least half of what the others are worth on average:

    log(speed with more / speed with fewer) >= WORTH * log(more / fewer)

More and fewer are what the server was generating, on average. Beyond that point, more requests make each
answer slower, and so older in weights, for little speed. A limit at which requests wait at the server is
lowered, because they bring no speed at all.
"""

from dataclasses import dataclass
from math import ceil, log

MOST = 256  # the contract lets a server refuse more
FACTOR = 1.5  # between the limit that is kept and the one that is tried
WORTH = 0.5
APART = 1.15  # between two numbers of requests that are compared
WINDOW_S = 10.0  # of one measurement
SETTLES_S = 10.0  # before it, in which as many requests are under way as the limit says
FULL = 0.8  # of the limit: so many requests are under way while something can be measured
OVERFULL = 1.1  # of the limit: more are left over from a higher one
WAITING_SHARE = 0.1  # of the requests, that may wait at the server at most looks
LONGEST_REST = 32  # windows between trials; it doubles with each that brought nothing


@dataclass(frozen=True)
class Load:
    """What a server says of itself, at a time in seconds."""

    time: float
    sampled_tokens: float  # since the server started
    paused_s: float  # since the server started, in updates that have ended
    running: float  # completions that are generated
    waiting: float  # completions that wait at the server


@dataclass(frozen=True)
class Measured:
    """One window.

    limit: that it was measured under. speed: tokens a second. running: requests, on average.
    """

    limit: int
    speed: float
    running: float


class AdaptiveLimit:
    """The limit of one server. start: before anything is known of it."""

    def __init__(self, start: int, most: int = MOST):
        self.limit = start
        self._most = most
        self._last: Load | None = None
        self._kept: Measured | None = None  # its neighbours are tried
        self._upwards = True
        self._failed = 0  # trials in a row that brought nothing
        self._rest = 0  # windows until the next trial
        self._begin_anew()

    def observe(self, load: Load) -> None:
        """Takes the next look at the server into account."""
        before = self._last
        self._last = load
        if before is None:
            return
        if load.sampled_tokens < before.sampled_tokens or load.paused_s < before.paused_s:  # a new process
            self._kept = None
            self._begin_anew()
            return
        under_way = load.running + load.waiting
        if under_way > OVERFULL * self.limit:
            self._begin_anew()
        elif under_way >= FULL * self.limit:
            self._add(before, load)

    def _begin_anew(self) -> None:
        self._settles_s = SETTLES_S
        self._begin_window()

    def _begin_window(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0
        self._looks = 0
        self._running = 0.0  # summed over the looks
        self._queued = 0  # looks at which requests waited

    def _add(self, before: Load, load: Load) -> None:
        seconds = load.time - before.time - (load.paused_s - before.paused_s)
        if self._settles_s > 0:
            self._settles_s -= seconds
            return
        self._seconds += seconds
        self._tokens += load.sampled_tokens - before.sampled_tokens
        self._looks += 1
        self._running += load.running
        self._queued += load.waiting > WAITING_SHARE * (load.running + load.waiting)
        if self._seconds >= WINDOW_S and self._tokens and self._running:
            self._end_window()

    def _end_window(self) -> None:
        found = Measured(self.limit, self._tokens / self._seconds, self._running / self._looks)
        has_queue = 2 * self._queued > self._looks
        self._begin_window()
        if has_queue:
            self._lower(found)
        elif self._kept is None or self._kept.limit == self.limit:
            self._kept = found
            self._rest -= 1
            if self._rest < 0:
                self._try_another()
        else:
            self._judge(self._kept, found)

    def _lower(self, found: Measured) -> None:
        """Lowers the limit towards what the server generates at a time, by one step at most."""
        self.limit = max(1, int(self.limit / FACTOR), min(self.limit - 1, round(found.running)))
        self._kept = None
        self._upwards = False
        self._rest = LONGEST_REST
        self._begin_anew()

    def _try_another(self) -> None:
        other = self._other()
        if other == self.limit:  # at a bound
            self._upwards = not self._upwards
            other = self._other()
        self.limit = other
        self._begin_anew()

    def _other(self) -> int:
        other = ceil(self.limit * FACTOR) if self._upwards else int(self.limit / FACTOR)
        return min(max(other, 1), self._most)

    def _judge(self, kept: Measured, tried: Measured) -> None:
        """Keeps the limit that is tried and goes on in its direction, or returns and turns."""
        fewer, more = sorted((kept, tried), key=lambda measured: measured.running)
        ratio = more.running / fewer.running
        if ratio < APART:
            return  # the window says nothing yet
        is_worth_it = log(more.speed / fewer.speed) >= WORTH * log(ratio)
        if tried == (more if is_worth_it else fewer):
            self._kept = tried
            self._failed = 0
            self._try_another()
            return
        self.limit = kept.limit
        self._upwards = not self._upwards
        self._failed += 1
        self._rest = min(2**self._failed // 2, LONGEST_REST)
        self._begin_anew()
