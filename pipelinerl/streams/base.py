"""The stream interface: an append-only sequence of records with one writer and many readers.

An offset is an opaque, increasing int: the place where a record begins, or where the next one will begin.
Every stream begins at 0.
"""

import abc
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from contracts.records import Dated, Record


class StreamError(RuntimeError):
    """A call on a stream failed. The message names the stream and the offset."""


class StreamBusyError(StreamError):
    """Another live process writes to the stream."""


class StreamFullError(StreamError):
    """The stream's storage is full."""


class StreamTrimmedError(StreamError):
    """Retention has deleted the records at the offset."""


class StreamCorruptError(StreamError):
    """The stored data differ from what was appended."""


def do_nothing() -> None:
    """Does nothing. The default callback for waits."""


class Entry(NamedTuple):
    record: Record
    next_offset: int  # offset after this record, to read on from


class StreamWriter(abc.ABC):
    """The only writer of a stream. Opening it removes a record that a crash left incomplete."""

    end: int  # the offset after the newest record

    def append(self, record: Record) -> int:
        """Appends a record, durable against a crash of this process. Returns the offset after the record.

        While the storage is full, it waits, and logs that once. A `Dated` record without a time gets the
        current time.
        """
        if isinstance(record, Dated) and not record.at:
            record = msgspec.structs.replace(record, at=time.time())
        return self._append(record)

    @abc.abstractmethod
    def _append(self, record: Record) -> int:
        """Appends the record unchanged. Returns the offset after it."""

    @abc.abstractmethod
    def last(self) -> Record | None:
        """Returns the newest record, so that a restarted writer knows what it has written."""

    @abc.abstractmethod
    def protect(self, from_offset: int) -> None:
        """Makes retention by size keep all records from the offset on."""

    @abc.abstractmethod
    def trim(self, before_offset: int) -> None:
        """Deletes records that end before the offset. It may keep some of them, but deletes no others."""

    @abc.abstractmethod
    def close(self) -> None: ...


class StreamReader(abc.ABC):
    @abc.abstractmethod
    def read(self, from_offset: int = 0, timeout_s: float | None = None) -> Iterator[Entry]:
        """Yields entries from the offset on, waiting for more; ends after `timeout_s` without one.

        With `timeout_s` 0 it yields only existing records; None waits for ever. A stream that does not exist
        yet is empty. Raises StreamTrimmedError for an offset that retention has deleted, 0 included.
        """

    @abc.abstractmethod
    def first_offset(self) -> int:
        """Returns the offset of the first record that retention has kept; 0 if none was deleted."""


class Streams(abc.ABC):
    """The streams of one run, by name: `rollouts`, `eval_rollouts`, `rows`, `actor_events`, ..."""

    @abc.abstractmethod
    def writer(self, name: str) -> StreamWriter:
        """Opens the stream for writing. Raises StreamBusyError if another live process writes to it."""

    @abc.abstractmethod
    def reader(self, name: str) -> StreamReader: ...

    @abc.abstractmethod
    def sync(self, names: Sequence[str]) -> None:
        """Waits until all records appended to these streams would survive a loss of power."""

    @abc.abstractmethod
    def names(self) -> list[str]: ...
