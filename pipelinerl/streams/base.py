"""The interface of streams: append-only sequences of records with one writer and many readers.

An offset is an opaque, increasing int: the position of a record, or of the next one to be appended. Every
stream starts at 0.
"""

import abc
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from contracts.records import Dated, Record


class StreamError(RuntimeError):
    """An operation on a stream failed. The message names the stream and the offset."""


class StreamBusyError(StreamError):
    """Another live process writes to the stream."""


class StreamFullError(StreamError):
    """The stream's storage is full."""


class StreamTrimmedError(StreamError):
    """Retention has deleted the records at the offset."""


class StreamCorruptError(StreamError):
    """The stored data differ from the appended data."""


def do_nothing() -> None: ...


class Entry(NamedTuple):
    record: Record
    next_offset: int  # offset after this record


class StreamWriter(abc.ABC):
    """The only writer of a stream. Opening it removes a record that a crash left incomplete."""

    end: int  # the offset after the newest record

    def append(self, record: Record) -> int:
        """Appends a record, which survives a crash of this process. Returns the offset after the record.

        Waits while the storage is full. A `Dated` record without a time gets the current time.
        """
        if isinstance(record, Dated) and not record.at:
            record = msgspec.structs.replace(record, at=time.time())
        return self._append(record)

    @abc.abstractmethod
    def _append(self, record: Record) -> int:
        """Appends the record unchanged. Returns the offset after it."""

    @abc.abstractmethod
    def last(self) -> Record | None:
        """Returns the newest record, or None if there is none."""

    @abc.abstractmethod
    def protect(self, from_offset: int) -> None:
        """Excludes records from the offset on from retention by size."""

    @abc.abstractmethod
    def trim(self, before_offset: int) -> None:
        """Deletes records that end before the offset; an implementation may keep some of them."""

    @abc.abstractmethod
    def close(self) -> None: ...


class StreamReader(abc.ABC):
    @abc.abstractmethod
    def read(self, from_offset: int = 0, timeout_s: float | None = None) -> Iterator[Entry]:
        """Yields entries from the offset on, and waits for more; ends after `timeout_s` without one.

        timeout_s: 0 yields only existing records; None waits without a limit. A stream that does not exist
        yet is empty. Raises StreamTrimmedError if retention has deleted the record at the offset, even at 0.
        """

    @abc.abstractmethod
    def first_offset(self) -> int:
        """Returns the offset of the first record, which is 0 unless retention has deleted records."""


class Streams(abc.ABC):
    """The streams of one run, by name: `rollouts`, `eval_rollouts`, `rows`, `actor_events`, ..."""

    @abc.abstractmethod
    def writer(self, name: str) -> StreamWriter:
        """Opens the stream for writing. Raises StreamBusyError if another live process writes to it."""

    @abc.abstractmethod
    def reader(self, name: str) -> StreamReader: ...

    @abc.abstractmethod
    def sync(self, names: Sequence[str]) -> None:
        """Waits until all records appended to these streams are on the disk."""

    @abc.abstractmethod
    def names(self) -> list[str]: ...
