"""A simulated inference server: all requests go on at the same speed, which their number decides. Pure."""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from contracts.records import VersionSpan
from pipelinerl.simulate.rates import Rates


@dataclass(frozen=True)
class Request:
    """A request on a server. `begin`: the tokens that each request of the server had gained before it."""

    group_id: int
    member: int
    tokens: int
    begin: float


class Server:
    """Its `gained` is the number of tokens that a request has gained which was there from the start."""

    def __init__(self, rates: Rates, version: int = 0):
        self._rates = rates
        self._gained = 0.0
        self._now = 0.0
        self._paused = (0.0, 0.0)  # from, until
        self._running: list[tuple[float, int, Request]] = []
        self._number = 0
        self._switches = [(0.0, version)]  # (tokens gained, version that samples from there on)
        self.busy_s = 0.0  # summed over its requests

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def versions(self) -> list[tuple[float, int]]:
        return self._switches

    def start(self, now: float, group_id: int, member: int, tokens: int) -> None:
        """Begins a request for that many tokens."""
        self.go_to(now)
        request = Request(group_id, member, tokens, self._gained)
        heapq.heappush(self._running, (self._gained + tokens, self._number, request))
        self._number += 1

    def next_end(self) -> float:
        """Returns when the next request ends if none starts before; infinite if there is none."""
        if not self._running:
            return math.inf
        left = max(0.0, self._running[0][0] - self._gained)
        end = self._now + left * self._rates.token_s(self.running)
        begin, until = self._paused
        if end <= begin:
            return end
        return end + max(0.0, until - max(self._now, begin))

    def end_one(self) -> Request:
        """Goes to the next end, and returns the request that ends there."""
        self.go_to(self.next_end())
        return heapq.heappop(self._running)[2]

    def go_to(self, now: float) -> None:
        """Lets its requests go on until `now`."""
        if self._running:
            seconds = now - self._now - self._paused_s(now)
            self._gained += seconds / self._rates.token_s(self.running)
            self.busy_s += self.running * (now - self._now)
        self._now = now

    def pause(self, begin: float, until: float) -> None:
        """Lets nothing go on between two moments, which may be yet to come. Forgets an earlier pause."""
        self._paused = (begin, until)

    def _paused_s(self, now: float) -> float:
        """Returns how many of the seconds until `now` are of the pause."""
        begin, until = self._paused
        return max(0.0, min(now, until) - max(self._now, begin))

    def update(self, now: float, version: int) -> None:
        """Labels what is sampled from now on."""
        self.go_to(now)
        self._switches.append((self._gained, version))

    def spans(self, request: Request) -> list[VersionSpan]:
        """Returns which versions sampled the tokens of a request that has ended."""
        at = request.begin + np.arange(request.tokens)
        first = [gained for gained, _ in self._switches]
        index = np.searchsorted(first, at, side="right") - 1
        cuts = [0, *(np.flatnonzero(np.diff(index)) + 1), request.tokens]
        return [
            VersionSpan(self._switches[index[start]][1], int(start), int(end))
            for start, end in zip(cuts[:-1], cuts[1:], strict=True)
        ]
