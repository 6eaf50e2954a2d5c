"""Decides which server gets the next request. Pure state, no I/O.

A server that fails a request gets none for a while, each time longer, and then begins with one request. Every
good answer doubles its share, up to its limit: the slow start of load balancers. The caller passes the times.

A server that is held gets no new requests until it is let go, because its weights may not be used.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SHORTEST_REST_S = 0.2  # after the first failure of a server; doubles with each
LONGEST_REST_S = 10.0
MOST_DOUBLINGS = 10  # the rest reaches its longest duration before that


@dataclass(eq=False)
class Server:
    url: str
    limit: int  # the most requests that the server may have at a time
    share: int  # the most that it may have now, fewer after a failure
    in_flight: int = 0
    strikes: int = 0  # failures since its last good answer
    rests_until: float = 0.0
    left_out: bool = False  # whether the server is out of service because it is silent

    def takes_more(self, now: float) -> bool:
        return self.in_flight < self.share and now >= self.rests_until and not self.left_out


class Routing:
    """The state of all servers, and the choice of one for each request.

    limit: the most requests that a server may have at a time, until `set_limit` changes it.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._routed: dict[str, Server] = {}
        self._others: dict[str, Server] = {}  # not routed to any more
        self._held: dict[str, str] = {}  # URL -> why it is held, whether or not it is routed to

    @property
    def capacity(self) -> int:
        """The number of requests that may be in flight.

        Those on removed and on held servers are added to the limits of the others.
        """
        on_others = sum(server.in_flight for server in self._others.values())
        routed = self._routed.values()
        return sum(s.in_flight if s.url in self._held else s.limit for s in routed) + on_others

    @property
    def in_flight(self) -> int:
        """The number of requests on the servers that are routed to."""
        return sum(server.in_flight for server in self._routed.values())

    @property
    def urls(self) -> list[str]:
        """The servers that are routed to, and removed servers that still have requests."""
        return [*self._routed, *(url for url, server in self._others.items() if server.in_flight)]

    def set_servers(self, urls: Iterable[str]) -> list[str]:
        """Routes only to these servers, and ends their rests. Returns the servers that are removed."""
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
        """Whether there is no server to route to."""
        return not self._routed

    @property
    def has_no_usable_server(self) -> bool:
        """Whether every server is held."""
        return self._routed.keys() <= self._held.keys()

    def choose(self, now: float, avoid: str | None = None) -> Server | None:
        """Returns the least busy server that takes a request, or None.

        `avoid` is not chosen while another server is in service.
        """
        if avoid is not None and not self.has_other(avoid):
            avoid = None
        free = [s for s in self._in_service() if s.url != avoid and s.takes_more(now)]
        return min(free, key=lambda server: server.in_flight, default=None)

    def has_other(self, url: str) -> bool:
        """Returns whether a server other than `url` is in service."""
        return any(s.url != url and not s.left_out for s in self._in_service())

    def _in_service(self) -> list[Server]:
        """Returns the servers that are routed to and not held."""
        return [server for server in self._routed.values() if server.url not in self._held]

    def next_end_of_a_rest(self, now: float) -> float | None:
        rests = [s.rests_until for s in self._routed.values() if s.rests_until > now and not s.left_out]
        return min(rests, default=None)

    # --- weights that may not be used ---------------------------------------------------------

    def hold(self, url: str, why: str) -> bool:
        """Holds a server, also one that is not routed to yet. Returns whether that is new."""
        is_new = url not in self._held
        self._held[url] = why
        return is_new

    def release(self, url: str) -> bool:
        """Ends a server's hold. Returns whether it was held."""
        return self._held.pop(url, None) is not None

    @property
    def held(self) -> dict[str, str]:
        """Why each held server is held, by its URL."""
        return {url: why for url, why in self._held.items() if url in self._routed}

    # --- what becomes of requests -------------------------------------------------------------

    def succeeded(self, server: Server) -> None:
        server.strikes = 0
        server.share = min(2 * server.share, server.limit)

    def failed(self, server: Server, now: float) -> None:
        """Counts a failure. Failures while the server rests have the same cause, and are not counted."""
        server.share = 1
        if now >= server.rests_until:
            rest_s = SHORTEST_REST_S * 2 ** min(server.strikes, MOST_DOUBLINGS)
            server.strikes += 1
            server.rests_until = now + min(rest_s, LONGEST_REST_S)

    def set_limit(self, url: str, limit: int) -> None:
        """Changes how many requests the server may have. Requests in flight are not interrupted."""
        server = self.find(url)
        if server:
            server.share = limit if server.share == server.limit else min(server.share, limit)
            server.limit = limit

    def find(self, url: str) -> Server | None:
        return self._routed.get(url) or self._others.get(url)

    # --- silence ------------------------------------------------------------------------------

    def leave_out(self, url: str) -> bool:
        """Takes a silent server out of service. Returns False and does nothing if no other is in service."""
        server = self.find(url)
        if server is None or not self.has_other(url):
            return False
        server.left_out = True
        server.share = 1
        return True

    def take_back(self, url: str) -> None:
        """Puts a server that answers again back into service."""
        server = self.find(url)
        if server and server.left_out:
            server.left_out = False
            server.rests_until = 0.0
