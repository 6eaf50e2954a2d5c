"""Reads the servers of a run from the launcher's events, for the actor and the trainer."""

import threading
import time
from collections.abc import Callable

from pipelinerl.clients.server_registry import Joining, Leaving, ServerRegistry
from pipelinerl.streams.base import Streams


class LaunchedServers:
    """The servers of a run. Thread-safe. on_refresh: called by every `refresh`."""

    def __init__(self, streams: Streams, on_refresh: Callable[[], object] = lambda: None):
        self._on_refresh = on_refresh
        self._reader = streams.reader("launcher_events")
        self._lock = threading.Lock()
        self._registry = ServerRegistry()
        self.offset = 0  # offset after the last record read
        self.changed_at = time.monotonic()  # time of the last change

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
        with self._lock:
            return self._registry.present

    @property
    def latest(self) -> list[Joining]:
        """The last instance of every server name, also if it has left."""
        with self._lock:
            return list(self._registry.latest.values())
