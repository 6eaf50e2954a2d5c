"""Reads the launcher's requests to save a checkpoint and end, before a restart of the trainer."""

import time

from contracts.records import Resumed, SaveWanted
from pipelinerl.streams import Streams

POLL_EVERY_S = 1.0


class SaveRequests:
    """The requests in `launcher_events`. A resumption cancels earlier requests."""

    def __init__(self, streams: Streams):
        self._reader = streams.reader("launcher_events")
        self._offset = 0
        self._next_poll = 0.0
        self._wanted = False

    def is_wanted(self) -> bool:
        """Returns True if a save is requested. Reads the stream at most every `POLL_EVERY_S`. Never waits."""
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + POLL_EVERY_S
            self._poll()
        return self._wanted

    def _poll(self) -> None:
        for entry in self._reader.read(self._offset, timeout_s=0):
            self._offset = entry.next_offset
            if isinstance(entry.record, SaveWanted | Resumed):
                self._wanted = isinstance(entry.record, SaveWanted)
