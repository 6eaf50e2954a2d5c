"""When a server that did not answer in time is asked again: ever more rarely, as others wait meanwhile.

Pure state, no I/O. Times are the caller's.
"""

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

Server = TypeVar("Server", bound=Hashable)


class SilentServers(Generic[Server]):
    """first_pause_s: after the first silence of a server. It doubles with each, up to the longest."""

    def __init__(self, first_pause_s: float, longest_pause_s: float):
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._pauses: dict[Server, float] = {}  # of those that did not answer the last time
        self._asked_again: dict[Server, float] = {}  # when

    def observe(self, asked: Iterable[Server], silent: Collection[Server], now: float) -> None:
        """Takes into account who was asked, and who of these did not answer in time."""
        for server in asked:
            pause = self._pauses.pop(server, None)
            if server in silent:
                longer = 2 * pause if pause else self._first_pause_s
                self._pauses[server] = min(longer, self._longest_pause_s)
                self._asked_again[server] = now + self._pauses[server]

    def is_due(self, server: Server, now: float) -> bool:
        """Returns whether it is time to ask the server."""
        return server not in self._pauses or now >= self._asked_again[server]

    def forget(self) -> None:
        """Lets every server be asked at once."""
        self._pauses.clear()
