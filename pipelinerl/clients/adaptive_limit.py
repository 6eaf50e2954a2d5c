"""Finds how many requests a server should get at a time. Pure state, no I/O; times are the caller's.

A higher limit and a lower one are tried by turns, and the server's speeds are compared. One more request must
be worth at least half of what the others are worth on average:

    log(speed with more / speed with fewer) >= WORTH * log(more / fewer)

More and fewer are what the server had under way, on average, those included that wait at the server. Beyond
that point, more requests make each answer slower, and so older in weights, for little speed.
"""

from dataclasses import dataclass
from math import ceil, log
from statistics import fmean

MOST = (
    128  # the contract lets a server refuse more than 256 choices; those of a request count until all ended
)
FACTOR = 1.5  # between the limit that is kept and the one that is tried
WORTH = 0.5
APART = 1.15  # between two numbers of requests that are compared
WINDOW_S = 10.0  # of one measurement
SETTLES_S = 10.0  # before it, in which as many requests are under way as the limit says
FULL = 0.8  # of the limit: so many requests are under way while something can be measured
OVERFULL = 1.1  # of the limit: more are left over from a higher one
LONGEST_GAP_S = 10.0  # between two looks, without pauses; after a longer one the server is as if never seen
LONGEST_TRIAL_S = 120.0  # without a verdict, for example because so many requests do not come
LONGEST_REST = 32  # windows between trials; it doubles with each that brought nothing


@dataclass(frozen=True)
class Load:
    """What a server says of itself, at a time in seconds."""

    time: float
    sampled_tokens: float  # since the server started
    paused_s: float  # since the server started, in updates that have ended
    under_way: float  # completions that are generated, or wait at the server


@dataclass(frozen=True)
class Interval:
    """The time between two looks, without the pauses that the server has told of."""

    seconds: float
    tokens: float
    under_way: float  # at its end


@dataclass(frozen=True)
class Measured:
    """One window.

    limit: that it was measured under. speed: tokens a second. under_way: requests, on average.
    """

    limit: int
    speed: float
    under_way: float


class AdaptiveLimit:
    """The limit of one server. start: before anything is known of it."""

    def __init__(self, start: int, most: int = MOST):
        self._start = start
        self._most = most
        self._last: Load | None = None
        self._start_over()

    def _start_over(self) -> None:
        self.limit = self._start
        self._kept: Measured | None = None  # its neighbours are tried
        self._upwards = True
        self._failed = 0  # trials in a row that brought nothing
        self._rest = 0  # windows until the next trial
        self._tried_s = 0.0  # of this trial, without the time in which requests were left over
        self._begin_anew()

    def observe(self, load: Load) -> None:
        """Takes the next look at the server into account."""
        before = self._last
        self._last = load
        if before is None:
            return
        if load.sampled_tokens < before.sampled_tokens or load.paused_s < before.paused_s:  # a new process
            self._start_over()
            return
        seconds = load.time - before.time - (load.paused_s - before.paused_s)
        if seconds > LONGEST_GAP_S or load.under_way > OVERFULL * self.limit:
            self._begin_anew()
            return
        self._tried_s += load.time - before.time
        if load.under_way >= FULL * self.limit:
            self._add(Interval(seconds, load.sampled_tokens - before.sampled_tokens, load.under_way))
        else:
            self._begin_anew()
        if self._kept and self._kept.limit != self.limit and self._tried_s > LONGEST_TRIAL_S:
            self._return_to(self._kept)

    def _begin_anew(self) -> None:
        self._settles_s = SETTLES_S
        self._begin_window()

    def _begin_window(self) -> None:
        self._window: list[Interval] = []
        self._newest: Interval | None = None  # is left out of the window if a pause has begun in it
        self._pausing = False

    def _add(self, interval: Interval) -> None:
        """Adds an interval to the window, unless a pause begins, goes on or ends in it.

        A server tells of a pause at its end. One that is shorter than an interval is taken off.
        """
        if self._pausing or not interval.tokens or interval.seconds <= 0:
            self._newest = None
            self._pausing = not interval.tokens
        elif self._settles_s > 0:
            self._settles_s -= interval.seconds
            if self._settles_s <= 0:
                self._newest = interval
        else:
            if self._newest:
                self._window.append(self._newest)
            self._newest = interval
            if sum(each.seconds for each in self._window) >= WINDOW_S:
                self._end_window()

    def _end_window(self) -> None:
        seconds = sum(each.seconds for each in self._window)
        tokens = sum(each.tokens for each in self._window)
        found = Measured(self.limit, tokens / seconds, fmean(each.under_way for each in self._window))
        self._window = []
        if self._kept is None or self._kept.limit == self.limit:
            self._kept = found
            self._rest -= 1
            if self._rest < 0:
                self._try_another()
        else:
            self._judge(self._kept, found)

    def _try_another(self) -> None:
        other = self._other()
        if other == self.limit:  # at a bound
            self._upwards = not self._upwards
            other = self._other()
        self.limit = other
        self._tried_s = 0.0
        self._begin_anew()

    def _other(self) -> int:
        other = ceil(self.limit * FACTOR) if self._upwards else int(self.limit / FACTOR)
        return min(max(other, 1), self._most)

    def _judge(self, kept: Measured, tried: Measured) -> None:
        """Keeps the limit that is tried and goes on in its direction, or returns and turns."""
        fewer, more = sorted((kept, tried), key=lambda measured: measured.under_way)
        ratio = more.under_way / fewer.under_way
        if ratio < APART:
            return  # the window says nothing yet
        is_worth_it = log(more.speed / fewer.speed) >= WORTH * log(ratio)
        if tried == (more if is_worth_it else fewer):
            self._kept = tried
            self._failed = 0
            self._try_another()
        else:
            self._return_to(kept)

    def _return_to(self, kept: Measured) -> None:
        """Ends a trial that brought nothing. The next one is in the other direction."""
        self.limit = kept.limit
        self._upwards = not self._upwards
        self._failed += 1
        self._rest = min(2**self._failed // 2, LONGEST_REST)
        self._begin_anew()
