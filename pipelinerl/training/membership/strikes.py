"""Exponential backoff for servers that fail weight updates. Pure state, no I/O.

A failed update is a strike. The k-th strike keeps a server out of publications for 2^(k-1) versions, so a
server that fails every update breaks groups less and less often. A server that returns is a suspect until an
update succeeds. Half of the suspects return at a time, and if the group breaks, they get the blame. A version
is published to the servers that did not fail it. If all failed it, halves of them are tried, then quarters,
and at last each server alone.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipelinerl.training.membership.blame import Blame

MOST_REST = 64  # versions; the longest time out, so that a repaired server is tried again
MOST_FAILURES = 5  # failures of one server at one version after which it is not tried for it again
MOST_IN_A_ROW = 5  # certain failures of one server without a success, before it should be replaced

Server = TypeVar("Server", bound=Hashable)


@dataclass
class _Standing:
    strikes: int = 0
    suspect: bool = False
    rests_until: int = 0  # first version in which the server may take part
    successes: int = 0  # successes since its last strike
    in_a_row: int = 0  # failures since its last success that it certainly caused


class ServerStrikes(Generic[Server]):
    def __init__(self) -> None:
        self._standings: dict[Server, _Standing] = {}
        self.version = -1  # version being published
        self._failures: Counter[Server] = Counter()  # failures at this version
        self._doubts: Counter[Server] = Counter()  # those failures that another server may have caused
        self._tried: set[Server] = set()  # suspects in the last chosen group

    def begin(self, version: int) -> None:
        """Begins the publication of `version`, or tries it again."""
        if version != self.version:
            self.version = version
            self._failures.clear()
            self._doubts.clear()

    @property
    def troubled(self) -> bool:
        """True if a server of the next group may still be busy with a broken group."""
        return bool(self._failures or self._tried)

    def choose(self, candidates: Sequence[Server]) -> list[Server]:
        """Returns the next group's members: [] if every candidate has failed this version too often."""
        limit = max(MOST_FAILURES, len(candidates).bit_length() + 1)
        left = [s for s in candidates if self._failures[s] < limit]
        sound = [s for s in left if not self._failures[s]]
        chosen = self._of_sound(sound) if sound else self._of_failed(left)
        self._tried = {s for s in chosen if self._standing(s).suspect}
        return [s for s in candidates if s in chosen]

    def _of_sound(self, sound: list[Server]) -> list[Server]:
        trusted = [s for s in sound if not self._standing(s).suspect]
        suspects = [s for s in sound if self._standing(s).suspect]
        back = [s for s in suspects if self._standing(s).rests_until <= self.version]
        if trusted and self._failures:
            return trusted  # after a failure at this version, suspects are not tried
        return trusted + self._half(back) or self._half(suspects)

    def _of_failed(self, left: list[Server]) -> list[Server]:
        fewest = min((self._failures[s] for s in left), default=0)
        least = [s for s in left if self._failures[s] == fewest]
        doubts = min((self._doubts[s] for s in least), default=0)
        return least[: max(1, len(left) >> doubts)]

    def _half(self, suspects: list[Server]) -> list[Server]:
        """Returns the half of the suspects with the fewest strikes, at least one."""
        ordered = sorted(suspects, key=lambda s: self._standing(s).strikes)
        return ordered[: max(1, len(ordered) // 2)]

    def failed(self, blame: Blame[Server]) -> frozenset[Server]:
        """Records that these servers broke a group. Returns those of them that get a strike."""
        servers = blame.servers
        certain = blame.certain
        if not certain and servers & self._tried:
            servers = servers & self._tried
            certain = len(servers) == 1
        for server in servers:
            self._failures[server] += 1
            self._doubts[server] += not certain
            standing = self._standing(server)
            standing.in_a_row += certain
            self._strike(standing)
        return servers

    def is_hopeless(self, server: Server) -> bool:
        """Returns True if the server has failed `MOST_IN_A_ROW` updates in a row."""
        return self._standing(server).in_a_row >= MOST_IN_A_ROW

    def _strike(self, standing: _Standing) -> None:
        standing.strikes += 1
        standing.suspect = True
        standing.successes = 0
        standing.rests_until = self.version + min(2 ** (standing.strikes - 1), MOST_REST)

    def succeeded(self, servers: Iterable[Server]) -> None:
        """Records that these servers serve the version. After k strikes, 2^k successes clear them."""
        for server in servers:
            standing = self._standing(server)
            standing.suspect = False
            standing.in_a_row = 0
            standing.successes += 1
            if standing.successes >= 2**standing.strikes:
                standing.strikes = 0

    def _standing(self, server: Server) -> _Standing:
        return self._standings.setdefault(server, _Standing())
