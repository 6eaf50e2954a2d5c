"""The stream interface: an append-only sequence of records with one writer and many readers.

An offset is an opaque int that only grows: where a record begins, or where the next one will. 0 is
the beginning of every stream.
"""

import abc
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from contracts.records import Dated, Record


class StreamError(RuntimeError):
    """A stream cannot do what was asked; the message names the stream and the offset."""


class StreamBusyError(StreamError):
    """Another live process writes to the stream."""


class StreamFullError(StreamError):
    """There is no room for the record where the stream is kept."""


class StreamTrimmedError(StreamError):
    """The offset lies before what retention has kept."""


class StreamCorruptError(StreamError):
    """What is stored is not what was appended."""


def do_nothing() -> None:
    """Does nothing, where nobody has to hear of a wait."""


class Entry(NamedTuple):
    record: Record
    next_offset: int  # read from here for what follows


class StreamWriter(abc.ABC):
    """The only writer of a stream. Opening it repairs what a crash tore."""

    end: int  # the offset after the newest record

    def append(self, record: Record) -> int:
        """Durable against a crash of this process; returns the offset after the record.

        It waits for as long as there is no room for the record where the stream is kept, and says so once.
        A `Dated` record that has no time is given the present one.
        """
        if isinstance(record, Dated) and not record.at:
            record = msgspec.structs.replace(record, at=time.time())
        return self._append(record)

    @abc.abstractmethod
    def _append(self, record: Record) -> int:
        """Appends the record as it is; returns the offset after it."""

    @abc.abstractmethod
    def last(self) -> Record | None:
        """The newest record, so that a restarted writer knows what it has written."""

    @abc.abstractmethod
    def protect(self, from_offset: int) -> None:
        """Retention by size keeps everything from here on, whatever its size."""

    @abc.abstractmethod
    def trim(self, before_offset: int) -> None:
        """Deletes records that lie wholly before the offset; it may keep some of them, and deletes no
        others."""

    @abc.abstractmethod
    def close(self) -> None: ...


class StreamReader(abc.ABC):
    @abc.abstractmethod
    def read(self, from_offset: int = 0, timeout_s: float | None = None) -> Iterator[Entry]:
        """Yields entries from the offset on, waiting for more; ends after `timeout_s` without one.

        `timeout_s` 0 yields only what is there; None waits for ever. A stream that does not exist yet is
        empty. Raises StreamTrimmedError for an offset that retention has deleted, 0 included.
        """

    @abc.abstractmethod
    def first_offset(self) -> int:
        """Returns where the records that retention has kept begin; 0 while nothing was deleted."""


class Streams(abc.ABC):
    """The streams of one run, by name: `rollouts`, `eval_rollouts`, `rows`, `actor_events`, ..."""

    @abc.abstractmethod
    def writer(self, name: str) -> StreamWriter:
        """Opens the stream for writing. Raises StreamBusyError when another live process writes to it."""

    @abc.abstractmethod
    def reader(self, name: str) -> StreamReader: ...

    @abc.abstractmethod
    def sync(self, names: Sequence[str]) -> None:
        """Returns when all that has been appended to these streams would outlast a loss of power."""

    @abc.abstractmethod
    def names(self) -> list[str]: ...
