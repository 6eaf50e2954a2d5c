"""Streams carry records between the processes of a run, and to commands that read a run.

Called by all processes of a run. Must not know the meaning of records, except in `events`, `launched_servers`
and `drop_reasons`.
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
