"""Streams carry records between the processes of a run: the interface, two backends, and their opening.

Called by the launcher, the actor, the preprocessor, the trainer, and commands that read a run. Must not know
what a record means, except `events`, `launched_servers` and `show`.
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
