"""Streams carry records between the processes of a run: the interface, two backends, how a run opens them.

Called by every process of a run and by all that reads one. Must not know what a record means, except `events`
and `show`.
"""

from pipelinerl.streams.base import (
    Entry,
    StreamBusyError,
    StreamCorruptError,
    StreamError,
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
    "StreamReader",
    "StreamTrimmedError",
    "StreamWriter",
    "Streams",
]
