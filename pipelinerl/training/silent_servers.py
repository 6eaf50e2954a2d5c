"""When a server that did not answer in time is asked again: ever more rarely, as others wait meanwhile.

Pure state, no I/O. Times are the caller's.
"""

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

FIRST_PAUSE_S = 1.0  # after the first silence of a server; doubles with each
LONGEST_PAUSE_S = 32.0

Server = TypeVar("Server", bound=Hashable)


class SilentServers(Generic[Server]):
    def __init__(self) -> None:
        self._pauses: dict[Server, float] = {}  # of those that did not answer the last time
        self._asked_again: dict[Server, float] = {}  # when

    def observe(self, asked: Iterable[Server], silent: Collection[Server], now: float) -> None:
        """Takes into account who was asked, and who of these did not answer in time."""
        for server in asked:
            pause = self._pauses.pop(server, None)
            if server in silent:
                self._pauses[server] = min(2 * pause, LONGEST_PAUSE_S) if pause else FIRST_PAUSE_S
                self._asked_again[server] = now + self._pauses[server]

    def is_due(self, server: Server, now: float) -> bool:
        """Returns whether it is time to ask the server."""
        return server not in self._pauses or now >= self._asked_again[server]

    def forget(self) -> None:
        """Lets every server be asked at once."""
        self._pauses.clear()
