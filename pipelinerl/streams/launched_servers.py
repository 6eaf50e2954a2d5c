"""Reads the servers of a run's newest launch from the launcher's events.

Used by the actor and by trainer rank 0, which reads them during every wait for a server.
"""

import threading
import time
from collections.abc import Callable

from pipelinerl.clients.server_registry import Joining, Leaving, ServerRegistry
from pipelinerl.streams.base import Streams


class LaunchedServers:
    """The servers of a run, as read from the launcher's events. Its methods are thread-safe."""

    def __init__(self, streams: Streams, on_refresh: Callable[[], object] = lambda: None):
        """on_refresh: is called by each `refresh`, and so during every wait for a server."""
        self._on_refresh = on_refresh
        self._reader = streams.reader("launcher_events")
        self._lock = threading.Lock()
        self._registry = ServerRegistry()
        self.offset = 0  # offset after the last record read
        self.changed_at = time.monotonic()  # time when a change was last read

    def refresh(self) -> list[Leaving]:
        """Reads the launcher's new events. Returns the servers that left since the last call."""
        self._on_refresh()
        leavings = []
        with self._lock:
            before = list(self._registry.latest.values())
            for entry in self._reader.read(self.offset, timeout_s=0):
                self.offset = entry.next_offset
                leavings += self._registry.observe(entry.record)
            if leavings or before != list(self._registry.latest.values()):
                self.changed_at = time.monotonic()
        return leavings

    @property
    def present(self) -> list[Joining]:
        """The servers of the run, as of the last `refresh`."""
        with self._lock:
            return self._registry.present

    @property
    def latest(self) -> list[Joining]:
        """The last joining of every server's name, whether or not it has left."""
        with self._lock:
            return list(self._registry.latest.values())
