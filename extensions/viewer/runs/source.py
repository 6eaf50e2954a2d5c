"""The streams of a run as files, from which the viewer reads.

Streams on a server are copied to `RUN_DIR/view/streams/`, because a connection to the run's own Redis server
prevents the run from resuming. A later viewer continues a complete copy, and replaces an incomplete one.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from contracts.records import Resumed
from contracts.support.files import write_atomically
from extensions.viewer.runs.own_directory import OwnDirectory
from pipelinerl.config import ResolvedStreams, saved_streams
from pipelinerl.streams import Entry, Streams, StreamWriter
from pipelinerl.streams.events import EVENT_STREAMS
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.of_run import recorded_streams

BEFORE_LAUNCHERS = (*EVENT_STREAMS, "rollouts", "eval_rollouts", "rows")
ONE_SEGMENT = 2**62  # bytes: one file per stream, in which an incomplete copy is truncated


class Source:
    """The streams of one run. `directory`: of the copy, if any."""

    def __init__(self, run_dir: Path, directory: OwnDirectory):
        is_copied = saved_streams(run_dir).target != ResolvedStreams().target  # the default: files
        self._copy = StreamsCopy(run_dir, directory) if is_copied else None
        self.streams = self._copy.streams if self._copy else FileStreams(run_dir / "streams")

    def update(self) -> None:
        """Copies new records. Raises StreamError or PlanError if the server cannot be read."""
        if self._copy:
            self._copy.update()

    def close(self) -> None:
        if self._copy:
            self._copy.close()


class Position(msgspec.Struct):
    """The position up to which a stream is copied."""

    source: int = 0  # offset in the run's stream
    copy: int = 0  # offset in the copy


class Positions(msgspec.Struct):
    streams: dict[str, Position] = {}
    data: list[tuple[str, int, int]] | None = None  # the server's files when everything was copied


class StreamsCopy:
    """A copy of a run's streams, in files."""

    def __init__(self, run_dir: Path, directory: OwnDirectory):
        self._run_dir = run_dir
        self._own = directory
        self.streams = FileStreams(directory.copy, segment_bytes=ONE_SEGMENT)
        self._writers: dict[str, StreamWriter] = {}
        self._offsets: dict[str, dict[int, int]] = {}  # stream of events -> source offset -> copy's
        self._positions = self._saved_positions()

    def update(self) -> None:
        """Copies new records. Starts a stopped server for this, unless its files are unchanged."""
        if self._positions.data is not None and self._server_files() == self._positions.data:
            return
        self._positions.data = None
        with recorded_streams(self._run_dir) as streams:
            # Read before the copying: the next update copies records that are written meanwhile.
            data = self._server_files()
            for name in BEFORE_LAUNCHERS:
                self._copy(streams, name)
            if self._copy_launchers(streams):
                self._positions.data = data
        self._save()

    def _copy(self, streams: Streams, name: str) -> None:
        position = self._position(name)
        offsets = self._offsets.setdefault(name, {position.source: position.copy})
        for entry in self._new(streams, name):
            position.copy = self._writer(name).append(entry.record)
            position.source = entry.next_offset
            if name in EVENT_STREAMS:
                offsets[position.source] = position.copy
        self._save()

    def _copy_launchers(self, streams: Streams) -> bool:
        """Copies the launcher's events, and converts the stream ends in a `Resumed` to those of the copies.

        Returns False if some must wait, because the copies of other streams do not reach these ends yet.
        """
        position = self._position("launcher_events")
        for entry in self._new(streams, "launcher_events"):
            record = entry.record
            if isinstance(record, Resumed):
                ends = {name: end for name, end in record.ends.items() if name in EVENT_STREAMS}
                if any(end > self._position(name).source for name, end in ends.items()):
                    return False
                copied = {name: self._offsets[name][end] for name, end in ends.items()}
                record = msgspec.structs.replace(record, ends=copied)
            position.copy = self._writer("launcher_events").append(record)
            position.source = entry.next_offset
        return True

    def _position(self, name: str) -> Position:
        return self._positions.streams.setdefault(name, Position())

    def _new(self, streams: Streams, name: str) -> Iterator[Entry]:
        reader = streams.reader(name)
        return reader.read(max(self._position(name).source, reader.first_offset()), timeout_s=0)

    def _writer(self, name: str) -> StreamWriter:
        """Returns the writer of a copy, truncated to the saved position."""
        if name not in self._writers:
            for segment in (self._own.copy / name).glob("*.records"):
                os.truncate(segment, self._position(name).copy)
            self._writers[name] = self.streams.writer(name)
        return self._writers[name]

    def _saved_positions(self) -> Positions:
        """Returns the positions of an earlier viewer's copy, or of a new copy if that one is incomplete."""
        if self._own.positions.exists():
            positions = msgspec.json.decode(self._own.positions.read_bytes(), type=Positions)
            if positions.data is not None:
                return positions
            self._own.forget_copy()
        return Positions()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _save(self) -> None:
        write_atomically(self._own.positions, msgspec.json.encode(self._positions))

    def _server_files(self) -> list[tuple[str, int, int]] | None:
        """Returns name, size and time of each file of the run's own server, or None for the user's server."""
        directory = self._run_dir / "redis" / "appendonlydir"
        if not directory.is_dir():
            return None
        return sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in directory.iterdir())
