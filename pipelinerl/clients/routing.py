"""Decides which server gets the next request. Pure state, no I/O; the caller passes the times.

A server that fails a request rests: it gets no requests for a while, longer after each failure. Then it
starts with one request, and every good answer doubles its share, up to its limit (slow start).

A held server gets no new requests until it is released, because its weights must not be used. A server that
is left out, because it does not answer, gets none until it is taken back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SHORTEST_REST_S = 0.2  # rest after the first failure of a server; doubles with each
LONGEST_REST_S = 10.0
MOST_DOUBLINGS = 10  # more than the rest needs to reach LONGEST_REST_S


@dataclass(eq=False)
class Server:
    url: str
    limit: int  # largest number of concurrent requests
    share: int  # current largest number, which is smaller after a failure
    in_flight: int = 0
    failures: int = 0  # failures since its last good answer
    rests_until: float = 0.0
    left_out: bool = False  # True if the server is out of service because it does not answer

    def takes_more(self, now: float) -> bool:
        return self.in_flight < self.share and now >= self.rests_until and not self.left_out


class Routing:
    """The state of all servers, and the choice of one for each request.

    limit: initial limit of concurrent requests of a server.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._routed: dict[str, Server] = {}
        self._others: dict[str, Server] = {}  # servers that get no further requests
        self._held: dict[str, str] = {}  # URL -> reason of the hold, also of servers not in `_routed`

    @property
    def capacity(self) -> int:
        """The number of request slots. Held and removed servers have as many as requests in flight."""
        on_others = sum(server.in_flight for server in self._others.values())
        routed = self._routed.values()
        return sum(s.in_flight if s.url in self._held else s.limit for s in routed) + on_others

    @property
    def in_flight(self) -> int:
        """The number of requests on servers in use, without removed ones."""
        return sum(server.in_flight for server in self._routed.values())

    @property
    def urls(self) -> list[str]:
        """The servers in use, and removed servers that still have requests."""
        return [*self._routed, *(url for url, server in self._others.items() if server.in_flight)]

    def set_servers(self, urls: Iterable[str]) -> list[str]:
        """Routes only to these servers, and ends their rests. Returns the removed servers."""
        known = self._others | self._routed
        before = self._routed
        self._routed = {url: known.pop(url, None) or Server(url, self._limit, self._limit) for url in urls}
        self._others = known
        for url, server in self._routed.items():
            server.rests_until = 0.0
            server.left_out = server.left_out and url in before  # a new server has just answered
        return [url for url in before if url not in self._routed]

    def forget(self, url: str) -> None:
        """Forgets a server that left the run. A later server at the same URL starts without its state."""
        self._routed.pop(url, None)
        self._others.pop(url, None)
        self._held.pop(url, None)

    @property
    def is_empty(self) -> bool:
        return not self._routed

    @property
    def has_no_usable_server(self) -> bool:
        """True if every server is held, or there is none."""
        return self._routed.keys() <= self._held.keys()

    def choose(self, now: float, avoid: str | None = None) -> Server | None:
        """Returns the least busy server that accepts a request, or None.

        avoid: URL of a server that is not chosen while another one is in service.
        """
        if avoid is not None and not self.has_other(avoid):
            avoid = None
        free = [s for s in self._in_service() if s.url != avoid and s.takes_more(now)]
        return min(free, key=lambda server: server.in_flight, default=None)

    def has_other(self, url: str) -> bool:
        return any(s.url != url and not s.left_out for s in self._in_service())

    def _in_service(self) -> list[Server]:
        return [server for server in self._routed.values() if server.url not in self._held]

    def next_end_of_a_rest(self, now: float) -> float | None:
        rests = [s.rests_until for s in self._routed.values() if s.rests_until > now and not s.left_out]
        return min(rests, default=None)

    # --- weights that may not be used ---------------------------------------------------------

    def hold(self, url: str, why: str) -> bool:
        """Holds a server, which may be unknown yet. Returns False if it was held already."""
        is_new = url not in self._held
        self._held[url] = why
        return is_new

    def release(self, url: str) -> bool:
        """Ends a server's hold. Returns False if it was not held."""
        return self._held.pop(url, None) is not None

    @property
    def held(self) -> dict[str, str]:
        return {url: why for url, why in self._held.items() if url in self._routed}

    # --- results of requests ------------------------------------------------------------------

    def succeeded(self, server: Server) -> None:
        server.failures = 0
        server.share = min(2 * server.share, server.limit)

    def failed(self, server: Server, now: float) -> None:
        """Counts a failure, except during a rest, when it has the same cause as the counted one."""
        server.share = 1
        if now >= server.rests_until:
            rest_s = SHORTEST_REST_S * 2 ** min(server.failures, MOST_DOUBLINGS)
            server.failures += 1
            server.rests_until = now + min(rest_s, LONGEST_REST_S)

    def set_limit(self, url: str, limit: int) -> None:
        server = self.find(url)
        if server:
            server.share = limit if server.share == server.limit else min(server.share, limit)
            server.limit = limit

    def find(self, url: str) -> Server | None:
        return self._routed.get(url) or self._others.get(url)

    # --- silence ------------------------------------------------------------------------------

    def leave_out(self, url: str) -> bool:
        """Takes a server out of service. Returns False and does nothing if no other is in service."""
        server = self.find(url)
        if server is None or not self.has_other(url):
            return False
        server.left_out = True
        server.share = 1
        return True

    def take_back(self, url: str) -> None:
        server = self.find(url)
        if server and server.left_out:
            server.left_out = False
            server.rests_until = 0.0
