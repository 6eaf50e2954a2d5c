"""Streams carry records between the processes of a run: the interface, two backends, how a run opens them.

Called by the launcher, the actor, the preprocessor and the trainer, and by all that reads a run. Must not
know what a record means, except `events`, `launched_servers` and `show`.
"""

from pipelinerl.streams.base import (
    Entry,
    StreamBusyError,
    StreamCorruptError,
    StreamError,
    StreamFullError,
    StreamReader,
    Streams,
    StreamTrimmedError,
    StreamWriter,
)

__all__ = [
    "Entry",
    "StreamBusyError",
    "StreamCorruptError",
    "StreamError",
    "StreamFullError",
    "StreamReader",
    "StreamTrimmedError",
    "StreamWriter",
    "Streams",
]
