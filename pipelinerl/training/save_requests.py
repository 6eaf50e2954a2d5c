"""Reads the launcher's requests that the trainer save its state and end, so that the workers restart."""

import time

from contracts.records import Resumed, SaveWanted
from pipelinerl.streams import Streams

LOOK_EVERY_S = 1.0


class SaveRequests:
    """The requests in `launcher_events`. A request is valid only in the launch in which it was made."""

    def __init__(self, streams: Streams):
        self._reader = streams.reader("launcher_events")
        self._offset = 0
        self._next_look = 0.0
        self._wanted = False

    def is_wanted(self) -> bool:
        """Returns whether a save is wanted. Reads the stream at most every `LOOK_EVERY_S`. Never waits."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S
            self._look()
        return self._wanted

    def _look(self) -> None:
        for entry in self._reader.read(self._offset, timeout_s=0):
            self._offset = entry.next_offset
            if isinstance(entry.record, SaveWanted | Resumed):
                self._wanted = isinstance(entry.record, SaveWanted)
