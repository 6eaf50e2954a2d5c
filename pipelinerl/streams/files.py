"""Streams as files in the run directory: the default, for the processes of one machine.

    <directory>/<stream>/00000000000000000000.records    a segment (see `segments`)
    <directory>/<stream>/writer.lock                     locked by the live writer, contains its process id

An append is passed to the operating system before it returns, so it survives a crash of the process. It
survives a loss of power once a later segment exists, or after `sync`. The lock belongs to the writer's open
file: it is released when the process ends, and shared with a forked child. Writers and readers are not
thread-safe.
"""

import contextlib
import fcntl
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from contracts.records import Record, decode, encode_into
from contracts.support.files import append_whole, is_disk_full, sync
from pipelinerl.streams.base import (
    Entry,
    StreamBusyError,
    StreamCorruptError,
    StreamError,
    StreamReader,
    Streams,
    StreamTrimmedError,
    StreamWriter,
    do_nothing,
)
from pipelinerl.streams.full_storage import retry_while_full
from pipelinerl.streams.segments import HEADER_BYTES, read_payloads, seal, segment_path, segment_starts

SHORTEST_PAUSE_S = 0.002  # between two polls of a stream without new records
LONGEST_PAUSE_S = 0.025


class FileStreams(Streams):
    """Streams in a directory.

    keep_bytes: size above which a writer deletes the oldest unprotected segments of its stream. Event streams
        are always complete, because they are the ledger of the run.
    on_wait: called every second while the writer waits for space on the disk.
    """

    def __init__(
        self,
        directory: str | Path,
        segment_bytes: int = 64 * 2**20,
        keep_bytes: int | None = None,
        on_wait: Callable[[], object] = do_nothing,
    ):
        self._on_wait = on_wait
        self._directory = Path(directory)
        self._segment_bytes = segment_bytes
        self._keep_bytes = keep_bytes
        self._synced: dict[str, int] = {}  # stream -> start of its last segment at the last `sync`

    def writer(self, name: str) -> "FileWriter":
        keep_bytes = None if name.endswith("_events") else self._keep_bytes
        return FileWriter(self._directory / name, self._segment_bytes, keep_bytes, self._on_wait)

    def reader(self, name: str) -> "FileReader":
        return FileReader(self._directory / name)

    def sync(self, names: Sequence[str]) -> None:
        for name in names:
            directory = self._directory / name
            starts = segment_starts(directory)
            for start in starts:
                if start >= self._synced.get(name, 0):
                    sync_if_there(segment_path(directory, start))
            if starts:
                sync(directory)
                self._synced[name] = starts[-1]
        sync(self._directory)
        sync(self._directory.parent)

    def names(self) -> list[str]:
        if not self._directory.is_dir():
            return []
        return sorted(entry.name for entry in self._directory.iterdir() if entry.is_dir())


class FileWriter(StreamWriter):
    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        keep_bytes: int | None,
        on_wait: Callable[[], object] = do_nothing,
    ):
        self._on_wait = on_wait
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._keep_bytes = keep_bytes
        self._protected: int | None = None
        self._framed = bytearray(HEADER_BYTES)  # the record being appended; its memory is reused
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock_writer(directory / "writer.lock")
        starts = segment_starts(directory) or [0]
        self._start = starts[-1]  # offset of the last segment
        self._file = segment_path(directory, self._start).open("ab", buffering=0)
        try:
            self._last, self.end = self._find_end(starts)
        except StreamError:
            self.close()
            raise
        self._file.truncate(self.end - self._start)

    def _append(self, record: Record) -> int:
        data = self._framed
        encode_into(data, HEADER_BYTES, record)
        seal(data)
        filled = self.end - self._start
        if filled and filled + len(data) > self._segment_bytes:
            os.fsync(self._file.fileno())  # not retried: a second fsync would not report the error
            self._retry_while_full(self._roll)
        self._retry_while_full(lambda: append_whole(self._file, data, self.end - self._start))
        self._last = self.end
        self.end = self.end + len(data)
        return self.end

    def last(self) -> Record | None:
        if self._last is None:
            return None
        return next(FileReader(self._directory).read(self._last, timeout_s=0)).record

    def protect(self, from_offset: int) -> None:
        self._protected = from_offset

    def trim(self, before_offset: int) -> None:
        """Deletes only complete segments, never the one with the newest record."""
        if self._last is None:
            return
        starts = segment_starts(self._directory)
        for start, end in zip(starts, starts[1:], strict=False):
            if end <= min(before_offset, self._last):
                segment_path(self._directory, start).unlink()

    def close(self) -> None:
        self._file.close()
        self._lock.close()

    def _find_end(self, starts: list[int]) -> tuple[int | None, int]:
        """Returns the offset of the newest record, or None without records, and the end of the stream.

        If the last segment is empty, the newest record is in an earlier one.
        """
        last = None
        end = starts[-1]
        for start in reversed(starts):
            position = start
            sealed = start != starts[-1]
            for _, following in read_payloads(segment_path(self._directory, start), start, sealed):
                last = position
                position = following
            if not sealed:
                end = position
            if last is not None:
                break
        return last, end

    def _retry_while_full(self, write: Callable[[], None]) -> None:
        retry_while_full(write, self._directory.name, f"the disk of {self._directory}", self._on_wait)

    def _roll(self) -> None:
        """Starts another segment. The caller has synced the previous one."""
        following = segment_path(self._directory, self.end).open("ab", buffering=0)
        self._file.close()
        self._file = following
        self._start = self.end
        sync(self._directory)
        if self._keep_bytes is not None:
            limit = self.end - self._keep_bytes
            self.trim(limit if self._protected is None else min(limit, self._protected))


class FileReader(StreamReader):
    def __init__(self, directory: Path):
        self._directory = directory

    def read(self, from_offset: int = 0, timeout_s: float | None = None) -> Iterator[Entry]:
        offset = from_offset
        suspect = None
        pause = SHORTEST_PAUSE_S
        waiting_since = None
        while True:
            try:
                for entry in self._available(offset):
                    yield entry
                    offset = entry.next_offset
                    pause = SHORTEST_PAUSE_S
                    waiting_since = None
            except StreamCorruptError:
                # A poll is not atomic: it may miss a new segment, or mix an incomplete last record with
                # its replacement by a restarted writer. Only damage is found twice.
                if suspect == offset:
                    raise
                suspect = offset
                time.sleep(LONGEST_PAUSE_S)
                continue
            waiting_since = waiting_since or time.monotonic()
            if timeout_s is not None:
                remaining = waiting_since + timeout_s - time.monotonic()
                if remaining <= 0:
                    return
                pause = min(pause, remaining)
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE_S)

    def first_offset(self) -> int:
        return next(iter(segment_starts(self._directory)), 0)

    def size(self) -> int:
        """Returns the offset after the last byte, which may be of a record that is being written."""
        starts = segment_starts(self._directory)
        return starts[-1] + segment_path(self._directory, starts[-1]).stat().st_size if starts else 0

    def at(self, offset: int) -> Record:
        """Returns the record that begins at the offset. Raises StreamError if there is none."""
        for entry in self._available(offset):
            return entry.record
        raise StreamError(f"{self._directory} has no record at offset {offset}")

    def payloads(self, offset: int) -> Iterator[tuple[memoryview, int]]:
        """Yields the encoded records from the offset on, each with the offset after it.

        A StreamCorruptError may also be caused by a record that is being written.
        """
        for payload, following, _ in self._payloads(offset):
            yield payload, following

    def _available(self, offset: int) -> Iterator[Entry]:
        for payload, following, path in self._payloads(offset):
            yield Entry(_decode(payload, path, offset), following)
            offset = following

    def _payloads(self, offset: int) -> Iterator[tuple[memoryview, int, Path]]:
        """Yields the complete payloads from the offset on, the offset after each, and its segment."""
        starts = segment_starts(self._directory)
        if not starts and offset:
            raise StreamError(f"no stream in {self._directory}, so there is no offset {offset} in it")
        if starts and offset < starts[0]:
            raise StreamTrimmedError(
                f"{self._directory} is trimmed: it begins at {starts[0]}, not at {offset}"
            )
        first = max(bisect_right(starts, offset) - 1, 0)
        for index, start in enumerate(starts[first:], first + 1):
            path = segment_path(self._directory, start)
            sealed = index < len(starts)
            if start > offset:
                raise StreamCorruptError(f"{path} should follow at offset {offset}: a segment is missing")
            try:
                for payload, following in read_payloads(path, offset, sealed):
                    yield payload, following, path
                    offset = following
            except FileNotFoundError:
                raise StreamTrimmedError(f"{path} was trimmed while it was read at {offset}") from None


def sync_if_there(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        sync(path)


def _decode(payload: memoryview, path: Path, offset: int) -> Record:
    try:
        return decode(payload)
    except msgspec.MsgspecError as error:
        raise StreamCorruptError(f"{path} holds no known record at offset {offset}: {error}") from error


def _lock_writer(path: Path) -> TextIO:
    """Opens and locks the file at `path`. Raises StreamBusyError if another process holds the lock."""
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        writer = lock.read().strip()
        lock.close()
        raise StreamBusyError(f"stream {path.parent} is being written to by process {writer}") from None
    try:
        os.truncate(path, 0)
        os.write(lock.fileno(), str(os.getpid()).encode())
    except OSError as error:
        if not is_disk_full(error):  # without space, the file does not name the holder
            raise
    return lock
