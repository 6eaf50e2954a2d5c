"""Streams carry records between the processes of a run; this is the interface, `files` a backend."""

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
