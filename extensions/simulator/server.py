"""A simulated inference server, whose requests have equal speed, by their number. Pure computation."""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from contracts.records import VersionSpan
from extensions.simulator.rates import Rates


@dataclass(frozen=True)
class Request:
    """A request on a server. begin: the server's token counter at the start of the request."""

    group_id: int
    member: int
    tokens: int
    begin: float


class Server:
    """A simulated server. Its token counter, `_gained`, counts the tokens of a request that never ends."""

    def __init__(self, rates: Rates, version: int = 0):
        self._rates = rates
        self._gained = 0.0
        self._now = 0.0
        self._paused = (0.0, 0.0)  # begin and end of the pause
        self._running: list[tuple[float, int, Request]] = []
        self._number = 0
        self._switches = [(0.0, version)]  # (token counter, version from then on)
        self.busy_s = 0.0  # sum of the requests' seconds

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def versions(self) -> list[tuple[float, int]]:
        return self._switches

    def start(self, now: float, group_id: int, member: int, tokens: int) -> None:
        self.go_to(now)
        request = Request(group_id, member, tokens, self._gained)
        heapq.heappush(self._running, (self._gained + tokens, self._number, request))
        self._number += 1

    def next_end(self) -> float:
        """Returns the time of the next end of a request, if none starts before; infinity without requests."""
        if not self._running:
            return math.inf
        left = max(0.0, self._running[0][0] - self._gained)
        end = self._now + left * self._rates.token_s(self.running)
        begin, until = self._paused
        if end <= begin:
            return end
        return end + max(0.0, until - max(self._now, begin))

    def end_one(self) -> Request:
        """Advances to the next end of a request, and returns the request."""
        self.go_to(self.next_end())
        return heapq.heappop(self._running)[2]

    def go_to(self, now: float) -> None:
        if self._running:
            seconds = now - self._now - self._paused_s(now)
            self._gained += seconds / self._rates.token_s(self.running)
            self.busy_s += self.running * (now - self._now)
        self._now = now

    def pause(self, begin: float, until: float) -> None:
        """Pauses all requests from `begin` to `until`, also in the future. Replaces an earlier pause."""
        self._paused = (begin, until)

    def _paused_s(self, now: float) -> float:
        """Returns the paused seconds between the last advance and `now`."""
        begin, until = self._paused
        return max(0.0, min(now, until) - max(self._now, begin))

    def update(self, now: float, version: int) -> None:
        self.go_to(now)
        self._switches.append((self._gained, version))

    def spans(self, request: Request) -> list[VersionSpan]:
        """Returns the versions that sampled the tokens of an ended request."""
        at = request.begin + np.arange(request.tokens)
        first = [gained for gained, _ in self._switches]
        index = np.searchsorted(first, at, side="right") - 1
        cuts = [0, *(np.flatnonzero(np.diff(index)) + 1), request.tokens]
        return [
            VersionSpan(self._switches[index[start]][1], int(start), int(end))
            for start, end in zip(cuts[:-1], cuts[1:], strict=True)
        ]
