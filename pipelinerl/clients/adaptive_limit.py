"""Finds how many requests a server should get at a time. Pure state, no I/O; times are the caller's.

A higher limit and a lower one are tried by turns, and the server's speeds are compared. One more request must
be worth at least half of what the others are worth on average:

    log(speed at the higher / speed at the lower) >= WORTH * log(higher / lower)

Beyond that, more requests make each answer slower, and so older in weights, for little speed. A server where
requests wait gets no more than it generates at a time.
"""

from dataclasses import dataclass
from math import ceil, log

MOST = 1024
FACTOR = 1.5  # between the limit that is kept and the one that is tried
WORTH = 0.5
WINDOW_S = 10.0  # of one measurement, and of the wait before it
WAITING_SHARE = 0.1  # of the limit that may wait at the server
WAITING_LOOKS = 2  # in a row, for which more waited
LONGEST_REST = 32  # windows between trials; it doubles with each that brought nothing


@dataclass(frozen=True)
class Load:
    """What a server says of itself, at a time in seconds."""

    time: float
    sampled_tokens: float  # since the server started
    running: float  # completions that are generated
    waiting: float  # completions that wait at the server


class AdaptiveLimit:
    """The limit of one server. start: before anything is known of it."""

    def __init__(self, start: int, most: int = MOST):
        self.limit = start
        self._most = most
        self._last: Load | None = None
        self._waited = 0  # looks in a row
        self._kept: tuple[int, float] | None = None  # the limit whose neighbours are tried, and its speed
        self._upwards = True
        self._failed = 0  # trials in a row that brought nothing
        self._rest = 0  # windows until the next trial
        self._measure_anew()

    def observe(self, load: Load, full: bool) -> None:
        """Takes the next look at the server into account.

        full: whether it has had as many requests as the limit allows since the last look.
        """
        before = self._last
        self._last = load
        if before is None or load.sampled_tokens < before.sampled_tokens:  # a new process
            self._measure_anew()
            return
        self._waited = self._waited + 1 if load.waiting > WAITING_SHARE * self.limit else 0
        if self._waited == WAITING_LOOKS:
            self._take_back(max(1, round(load.running)))
        elif full:
            self._seconds += load.time - before.time
            self._tokens += load.sampled_tokens - before.sampled_tokens
            if self._seconds >= WINDOW_S and self._tokens:
                self._end_window(self._tokens / self._seconds)

    def _measure_anew(self) -> None:
        self._settles = True  # what is in flight was started under another limit
        self._begin_window()

    def _begin_window(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0

    def _take_back(self, limit: int) -> None:
        """Lowers the limit to what the server generates at a time."""
        self._waited = 0
        self.limit = min(self.limit, limit)
        self._kept = None
        self._upwards = False
        self._rest = LONGEST_REST
        self._measure_anew()

    def _end_window(self, speed: float) -> None:
        self._begin_window()
        if self._settles:
            self._settles = False
        elif self._kept is None or self._kept[0] == self.limit:
            self._kept = (self.limit, speed)
            self._rest -= 1
            if self._rest < 0:
                self._try_another()
        else:
            self._judge(self._kept, speed)

    def _try_another(self) -> None:
        other = ceil(self.limit * FACTOR) if self._upwards else int(self.limit / FACTOR)
        self.limit = min(max(other, 1), self._most)
        self._measure_anew()

    def _judge(self, kept: tuple[int, float], speed: float) -> None:
        """Keeps the limit that is tried and goes on in its direction, or returns and turns."""
        tried = (self.limit, speed)
        lower, higher = sorted((kept, tried))
        is_worth_it = log(higher[1] / lower[1]) >= WORTH * log(higher[0] / lower[0])
        if tried == (higher if is_worth_it else lower):
            self._kept = tried
            self._failed = 0
            self._try_another()
        else:
            self.limit = kept[0]
            self._upwards = not self._upwards
            self._failed += 1
            self._rest = min(2**self._failed // 2, LONGEST_REST)
            self._measure_anew()
