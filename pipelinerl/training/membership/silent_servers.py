"""Decides when a silent server is asked again: less and less often, because each request delays training.

Pure state, no I/O. The caller passes the times.
"""

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

Server = TypeVar("Server", bound=Hashable)


class SilentServers(Generic[Server]):
    """The pauses of silent servers.

    first_pause_s: pause after a server's first silence. It doubles with each further one, up to the longest.
    """

    def __init__(self, first_pause_s: float, longest_pause_s: float):
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._pauses: dict[Server, float] = {}  # pauses of servers that did not answer the last time
        self._asked_again: dict[Server, float] = {}  # time of the next question

    def observe(self, asked: Iterable[Server], silent: Collection[Server], now: float) -> None:
        """Takes into account which servers were asked, and which of them did not answer in time."""
        for server in asked:
            pause = self._pauses.pop(server, None)
            if server in silent:
                longer = 2 * pause if pause else self._first_pause_s
                self._pauses[server] = min(longer, self._longest_pause_s)
                self._asked_again[server] = now + self._pauses[server]

    def is_due(self, server: Server, now: float) -> bool:
        """Returns True if the server may be asked now."""
        return server not in self._pauses or now >= self._asked_again[server]

    def forget(self) -> None:
        self._pauses.clear()
