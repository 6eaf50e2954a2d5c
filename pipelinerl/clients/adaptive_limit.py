"""Adapts the concurrency of a server to its speed. Pure state, no I/O; the caller passes the times.

The controller tries higher and lower limits of concurrent requests, and compares the server's speeds. An
additional request must add at least half the average speed of a request:

    log(speed with more / speed with fewer) >= WORTH * log(more / fewer)

`more` and `fewer` are mean numbers of requests on the server, including those in its queue. Beyond that
limit, more requests add little speed, but slow down each answer, whose weights become older.
"""

from dataclasses import dataclass
from math import ceil, log
from statistics import fmean

MOST = 128  # a server may refuse more than 256 choices, and counts a request's choices until all have ended
FACTOR = 1.5  # ratio of the limit on trial to the current one, or the inverse
WORTH = 0.5
APART = 1.15  # smallest ratio between two numbers of requests whose speeds are compared
WINDOW_S = 10.0  # length of one measurement
SETTLES_S = 10.0  # time at a limit before a measurement
FULL = 0.8  # smallest share of the limit that requests must use during a measurement
OVERFULL = 1.1  # share of the limit above which requests remain from a higher limit
LONGEST_GAP_S = 10.0  # longest time between two observations, without pauses, in a measurement
LONGEST_TRIAL_S = 120.0  # time after which a trial without a result ends, such as with too few requests
LONGEST_REST = 32  # windows between trials; the number doubles with each failed trial


@dataclass(frozen=True)
class Load:
    """The load that a server reports."""

    time: float  # seconds
    sampled_tokens: float  # since the server started
    paused_s: float  # duration of ended pauses for updates since the server started
    under_way: float  # running and waiting completions


@dataclass(frozen=True)
class Interval:
    """The time between two observations, without reported pauses."""

    seconds: float
    tokens: float
    under_way: float  # completions at the interval's end


@dataclass(frozen=True)
class Measured:
    """The result of one window. speed: tokens per second. under_way: the mean number of requests."""

    limit: int
    speed: float
    under_way: float


class AdaptiveLimit:
    """The limit of one server. start: the limit before the first measurement. most: its upper bound."""

    def __init__(self, start: int, most: int = MOST):
        self._start = start
        self._most = most
        self._last: Load | None = None
        self._start_over()

    def _start_over(self) -> None:
        self.limit = self._start
        self._kept: Measured | None = None  # the best limit so far
        self._upwards = True
        self._failed = 0  # consecutive trials that found no better limit
        self._rest = 0  # windows until the next trial
        self._tried_s = 0.0  # length of this trial, without the time with requests from a higher limit
        self._begin_anew()

    def observe(self, load: Load) -> None:
        """Updates the limit with the server's next load."""
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
        self._newest: Interval | None = None  # not yet in the window, because a pause may have begun in it
        self._pausing = False

    def _add(self, interval: Interval) -> None:
        """Adds an interval to the window, unless a part of a longer pause is in it.

        Servers report a pause at its end. Pauses within an interval are already subtracted.
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
        """Keeps the limit on trial and its direction, or restores the old limit and reverses direction."""
        fewer, more = sorted((kept, tried), key=lambda measured: measured.under_way)
        ratio = more.under_way / fewer.under_way
        if ratio < APART:
            return  # the numbers of requests are too close to compare
        is_worth_it = log(more.speed / fewer.speed) >= WORTH * log(ratio)
        if tried == (more if is_worth_it else fewer):
            self._kept = tried
            self._failed = 0
            self._try_another()
        else:
            self._return_to(kept)

    def _return_to(self, kept: Measured) -> None:
        """Ends a trial that found no better limit. The next trial is in the other direction."""
        self.limit = kept.limit
        self._upwards = not self._upwards
        self._failed += 1
        self._rest = min(2**self._failed // 2, LONGEST_REST)
        self._begin_anew()
