"""Streams carry records between the processes of a run: one interface, and the backend a run chose."""

from pathlib import Path
from typing import TYPE_CHECKING

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
from pipelinerl.streams.files import FileStreams

if TYPE_CHECKING:  # the configuration imports torch; reading streams should not
    from pipelinerl.config import StreamsConfig

__all__ = [
    "Entry",
    "StreamBusy",
    "StreamCorrupt",
    "StreamError",
    "StreamReader",
    "StreamTrimmed",
    "StreamWriter",
    "Streams",
    "open_streams",
]


def open_streams(config: "StreamsConfig", run_dir: Path) -> Streams:
    return FileStreams(run_dir / "streams", config.segment_bytes)
