"""Builds the index of a run's rollouts, batch by batch, from where it ended."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from pipelinerl.streams.base import StreamError, StreamTrimmedError
from pipelinerl.streams.files import FileStreams
from pipelinerl.view.index.feed import EventFeed
from pipelinerl.view.index.run_state import RunState
from pipelinerl.view.index.schema import delete, open_to_write, transaction
from pipelinerl.view.index.slim import rollout_decoder, trainings_of
from pipelinerl.view.index.tables import Tables

BATCH = 4000  # records in one transaction
BATCH_BYTES = 64 * 2**20
ROLLOUTS = {"rollouts": 0, "eval_rollouts": 1}  # stream -> `held_out`
NO_LOCK: AbstractContextManager = nullcontext()
Decoded = TypeVar("Decoded")


class Progress(NamedTuple):
    """How far the index is. bytes, of_bytes: of the streams of rollouts."""

    rollouts: int  # of training
    held_out: int
    bytes: int
    of_bytes: int
    is_complete: bool  # whether the last look found nothing new


class Index:
    """The writer of an index, which also keeps the run's state up to date. Used by one thread at a time."""

    def __init__(self, path: Path, streams: FileStreams, state: RunState):
        self._readers = {name: streams.reader(name) for name in (*ROLLOUTS, "rows")}
        self._db = self._opened(path)
        self._tables = Tables(self._db)
        self._positions = self._tables.positions()
        self._is_complete = False
        self._state = state
        self._feed = EventFeed(streams)
        self.damage: str | None = None  # what keeps the rest of a stream from being read

    def _opened(self, path: Path) -> sqlite3.Connection:
        """Returns the index at `path`; a new one if that is of longer streams than the run's."""
        db = open_to_write(path)
        positions = Tables(db).positions()
        if all(self._readers[name].size() >= offset for name, offset in positions.items()):
            return db
        db.close()
        delete(path)
        return open_to_write(path)

    def close(self) -> None:
        self._db.close()

    @property
    def progress(self) -> Progress:
        done = sum(self._positions.get(name, 0) for name in ROLLOUTS)
        counts = self._tables.counts
        size = sum(self._readers[name].size() for name in ROLLOUTS)
        return Progress(counts[0], counts[1], done, size, self._is_complete)

    def advance(self, lock: AbstractContextManager = NO_LOCK) -> bool:
        """Takes the next batch of every stream into account. Returns whether there was anything new.

        lock: is held while the state changes.
        """
        events = 0
        with lock:
            for event in self._feed.read():
                self._state.observe(event)
                events += 1
        self.damage = self._feed.damage
        with transaction(self._db):
            records = sum(self._take_rollouts(name, held_out) for name, held_out in ROLLOUTS.items())
            records += self._take_rows()
            changed = self._state.take_changed()
            self._tables.set_outcomes({group: self._state.outcome_of(group) for group in changed})
        self._is_complete = not (events or records)
        if self._is_complete:
            self._tables.tune()
        return not self._is_complete

    def _take_rollouts(self, name: str, held_out: int) -> int:
        found = list(self._batch(name, rollout_decoder.decode))
        self._tables.add_rollouts(held_out, found, self._state.outcome_of)
        return len(found)

    def _take_rows(self) -> int:
        count = 0
        for trainings, offset in self._batch("rows", trainings_of):
            self._tables.add_trainings(offset, trainings)
            count += 1
        return count

    def _batch(self, name: str, decode: Callable[[memoryview], Decoded]) -> Iterator[tuple[Decoded, int]]:
        """Yields the next records of a stream, each with the offset at which it begins."""
        reader = self._readers[name]
        begin = self._positions.get(name, 0)
        offset = first = max(begin, reader.first_offset())
        try:
            for payload, following in islice(reader.payloads(offset), BATCH):
                yield decode(payload), offset
                offset = following
                if offset - first > BATCH_BYTES:
                    break
        except StreamTrimmedError:  # the next batch begins where the stream does
            pass
        except (StreamError, msgspec.MsgspecError) as error:  # also of a record that is being written
            self.damage = f"the stream {name} cannot be read beyond offset {offset}: {error}"
        if offset != begin:
            self._positions[name] = offset
            self._tables.set_position(name, offset)
