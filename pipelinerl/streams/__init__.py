"""Streams carry records between the processes of a run; the interface. `files` and `redis` are backends."""

from pipelinerl.streams.base import (
    Entry,
    StreamBusy,
    StreamCorrupt,
    StreamError,
    StreamReader,
    Streams,
    StreamTrimmed,
    StreamWriter,
)

__all__ = [
    "Entry",
    "StreamBusy",
    "StreamCorrupt",
    "StreamError",
    "StreamReader",
    "StreamTrimmed",
    "StreamWriter",
    "Streams",
]
