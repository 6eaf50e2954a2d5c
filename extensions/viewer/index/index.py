"""Builds the index of a run's rollouts in batches, and continues an existing one."""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from extensions.viewer.index.feed import EventFeed
from extensions.viewer.index.run_state import RunState
from extensions.viewer.index.schema import delete, open_to_write, transaction
from extensions.viewer.index.slim import rollout_decoder, trainings_of
from extensions.viewer.index.tables import Tables
from pipelinerl.streams.base import StreamError, StreamTrimmedError
from pipelinerl.streams.files import FileStreams

BATCH = 4000  # records in one transaction
BATCH_BYTES = 64 * 2**20
ROLLOUTS = {"rollouts": 0, "eval_rollouts": 1}  # stream -> `held_out`
NO_LOCK: AbstractContextManager = nullcontext()
Decoded = TypeVar("Decoded")


class Progress(NamedTuple):
    """The progress of the index. bytes, of_bytes: sizes of the indexed and of all rollouts."""

    rollouts: int  # training rollouts
    held_out: int
    bytes: int
    of_bytes: int
    is_complete: bool  # True if the last `advance` reached the end of all streams


class Index:
    """The writer of an index, which also updates the run's state. Not thread-safe."""

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
        """Returns the index at `path`, or a new one if that is of longer streams than the run's."""
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
        """Indexes the next batch of every stream. Returns True if there may be further records.

        lock: acquired while the state changes.
        """
        events = 0
        with lock:
            for event in self._feed.read():
                self._state.observe(event)
                events += 1
        self.damage = self._feed.damage
        with transaction(self._db):
            is_full = [self._take_rollouts(name, held_out) for name, held_out in ROLLOUTS.items()]
            is_full.append(self._take_rows())
            changed = self._state.take_changed()
            self._tables.set_outcomes({group: self._state.outcome_of(group) for group in changed})
        events_end = self._feed.is_at_end or not events  # a damaged stream may block the others
        self._is_complete = events_end and not any(is_full)
        if self._is_complete:
            self._tables.tune()
        return not self._is_complete

    def _take_rollouts(self, name: str, held_out: int) -> bool:
        """Indexes the next batch of rollouts. Returns True if the batch is full, like `_take_rows`."""
        found, is_full = self._batch(name, rollout_decoder.decode)
        self._tables.add_rollouts(held_out, found, self._state.outcome_of)
        return is_full

    def _take_rows(self) -> bool:
        found, is_full = self._batch("rows", trainings_of)
        for trainings, offset in found:
            self._tables.add_trainings(offset, trainings)
        return is_full

    def _batch(
        self, name: str, decode: Callable[[memoryview], Decoded]
    ) -> tuple[list[tuple[Decoded, int]], bool]:
        """Returns the next records of a stream, each with its offset."""
        reader = self._readers[name]
        begin = self._positions.get(name, 0)
        offset = first = max(begin, reader.first_offset())
        found: list[tuple[Decoded, int]] = []
        try:
            for payload, following in islice(reader.payloads(offset), BATCH):
                found.append((decode(payload), offset))
                offset = following
                if offset - first > BATCH_BYTES:
                    break
        except StreamTrimmedError:  # the next call starts at the first record
            pass
        except (StreamError, msgspec.MsgspecError) as error:  # maybe a record that is being written
            self.damage = f"the stream {name} cannot be read beyond offset {offset}: {error}"
        if offset != begin:
            self._positions[name] = offset
            self._tables.set_position(name, offset)
        return found, len(found) == BATCH or offset - first > BATCH_BYTES
