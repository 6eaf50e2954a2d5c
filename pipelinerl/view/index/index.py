"""Builds the index of a run's rollouts, batch by batch, from where it ended."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from pipelinerl.streams.base import StreamCorruptError
from pipelinerl.streams.files import FileStreams
from pipelinerl.view.index.feed import EventFeed
from pipelinerl.view.index.run_state import RunState
from pipelinerl.view.index.schema import INDEXES, open_to_write, transaction
from pipelinerl.view.index.slim import SlimRollout, rollout_decoder, trainings_of

BATCH = 4000  # records in one transaction
BATCH_BYTES = 64 * 2**20
ROLLOUTS = {"rollouts": 0, "eval_rollouts": 1}  # stream -> `held_out`
Decoded = TypeVar("Decoded")


class Progress(NamedTuple):
    """How far the index is. bytes, of_bytes: of the streams of rollouts."""

    rollouts: int  # of training
    held_out: int
    bytes: int
    of_bytes: int

    @property
    def is_complete(self) -> bool:
        return self.bytes >= self.of_bytes


class Index:
    """The writer of an index, which also keeps the run's state up to date. Used by one thread at a time."""

    def __init__(self, path: Path, streams: FileStreams, state: RunState):
        self._db = open_to_write(path)
        self._readers = {name: streams.reader(name) for name in (*ROLLOUTS, "rows")}
        self._state = state
        self._feed = EventFeed(streams)
        self._positions = dict(map(tuple, self._db.execute("SELECT stream, offset FROM positions")))
        self._words = {
            (kind, word): number
            for number, kind, word in self._db.execute("SELECT id, kind, word FROM words")
        }
        counts = self._db.execute("SELECT held_out, count(*) FROM rollouts GROUP BY held_out")
        self._counts = Counter(dict(map(tuple, counts)))
        self._measured_at = 0  # rollouts that there were
        self.damage: str | None = None  # what keeps the rest of a stream from being read

    def close(self) -> None:
        self._db.close()

    @property
    def progress(self) -> Progress:
        done = sum(self._positions.get(name, 0) for name in ROLLOUTS)
        return Progress(
            self._counts[0], self._counts[1], done, sum(self._readers[name].size() for name in ROLLOUTS)
        )

    def advance(self) -> bool:
        """Takes the next batch of every stream into account. Returns whether there was anything new."""
        events = 0
        for event in self._feed.read():
            self._state.observe(event)
            events += 1
        with transaction(self._db):
            records = sum(self._take_rollouts(name, held_out) for name, held_out in ROLLOUTS.items())
            records += self._take_rows()
            self._write_outcomes()
        is_new = bool(events or records)
        if not is_new:
            self._tune()
        return is_new

    def _tune(self) -> None:
        """Makes the indexes of the lists, and measures the tables anew when they have doubled."""
        if self._counts.total() > 2 * self._measured_at:
            self._db.executescript(INDEXES)
            self._measured_at = self._counts.total()

    # --- rollouts -------------------------------------------------------------------------------

    def _take_rollouts(self, name: str, held_out: int) -> int:
        rows = []
        rewards: dict[int, tuple[float, float]] = {}
        requests: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for rollout, offset in self._batch(name, rollout_decoder.decode):
            rows.append(self._row(rollout, held_out, offset))
            least, most = rewards.get(rollout.group_id, (rollout.reward, rollout.reward))
            rewards[rollout.group_id] = min(least, rollout.reward), max(most, rollout.reward)
            _count_requests(requests, rollout)
        self._db.executemany(f"INSERT INTO rollouts VALUES ({', '.join('?' * 16)})", rows)
        self._write_versions(held_out, rows)
        self._db.executemany(
            "INSERT INTO groups VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " least = min(least, excluded.least), most = max(most, excluded.most)",
            [(held_out, group, *bounds) for group, bounds in rewards.items()],
        )
        self._db.executemany(
            "INSERT INTO servers VALUES (:url, :requests, :tokens, :aborted, :last_at)"
            " ON CONFLICT DO UPDATE SET"
            " requests = requests + excluded.requests, tokens = tokens + excluded.tokens,"
            " aborted = aborted + excluded.aborted, last_at = max(last_at, excluded.last_at)",
            [{"aborted": 0, **counts, "url": url} for url, counts in requests.items()],
        )
        self._counts[held_out] += len(rows)
        return len(rows)

    def _write_versions(self, held_out: int, rows: list[tuple]) -> None:
        """Widens the offsets between which the rollouts of each version are. Rows come by offset."""
        first_end: dict[int, int] = {}
        last_start: dict[int, int] = {}
        for row in rows:
            first_version, last_version = row[12:14]
            if first_version is not None:
                last_start[first_version] = row[1]
                first_end.setdefault(last_version, row[1])
        self._db.executemany(
            "INSERT INTO versions VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " first_end = coalesce(first_end, excluded.first_end),"
            " last_start = coalesce(excluded.last_start, last_start)",
            [
                (held_out, version, first_end.get(version), last_start.get(version))
                for version in {**first_end, **last_start}
            ],
        )

    def _row(self, rollout: SlimRollout, held_out: int, offset: int) -> tuple:
        versions = [s.version for c in rollout.completions for s in c.spans if s.end > s.start]
        outcome = None if held_out else self._state.outcome_of(rollout.group_id)
        return (
            held_out,
            offset,
            rollout.rollout_id,
            rollout.group_id,
            rollout.problem_id,
            self._word("domain", rollout.domain),
            self._word("status", rollout.status),
            outcome and self._word("outcome", outcome),
            rollout.reward,
            rollout.metrics.get("success"),
            sum(completion.tokens for completion in rollout.completions),
            len(rollout.completions),
            min(versions, default=None),
            max(versions, default=None),
            rollout.started_at,
            rollout.finished_at,
        )

    def _word(self, kind: str, word: str) -> int:
        if (kind, word) not in self._words:
            added = self._db.execute("INSERT INTO words (kind, word) VALUES (?, ?)", (kind, word))
            self._words[kind, word] = added.lastrowid
        return self._words[kind, word]

    # --- what became of them --------------------------------------------------------------------

    def _take_rows(self) -> int:
        count = 0
        for trainings, offset in self._batch("rows", trainings_of):
            found = [
                (of.rollout_id, offset, of.step, of.advantage, of.lag, of.tokens_in_loss) for of in trainings
            ]
            self._db.executemany("INSERT OR REPLACE INTO trainings VALUES (?, ?, ?, ?, ?, ?)", found)
            count += 1
        return count

    def _write_outcomes(self) -> None:
        changed = self._state.take_changed()
        outcomes = {group: self._state.outcome_of(group) for group in changed}
        self._db.executemany(
            "UPDATE rollouts INDEXED BY by_group SET outcome = :outcome"
            " WHERE held_out = 0 AND group_id = :group AND outcome IS NOT :outcome",
            [
                {"group": group, "outcome": outcome and self._word("outcome", outcome)}
                for group, outcome in outcomes.items()
            ],
        )

    # --- reading --------------------------------------------------------------------------------

    def _batch(self, name: str, decode: Callable[[memoryview], Decoded]) -> Iterator[tuple[Decoded, int]]:
        """Yields the next records of a stream, each with the offset at which it begins."""
        reader = self._readers[name]
        offset = max(self._positions.get(name, 0), reader.first_offset())
        size = 0
        try:
            for payload, following in islice(reader.payloads(offset), BATCH):
                yield decode(payload), offset
                size += following - offset
                offset = following
                if size > BATCH_BYTES:
                    break
        except (StreamCorruptError, msgspec.MsgspecError) as error:  # also of a record that is being written
            self.damage = f"the stream {name} cannot be read beyond offset {offset}: {error}"
        else:
            self.damage = None
        finally:
            if offset != self._positions.get(name):
                self._positions[name] = offset
                self._db.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (name, offset))


def _count_requests(requests: defaultdict[str, Counter[str]], rollout: SlimRollout) -> None:
    for completion in rollout.completions:
        counts = requests[completion.server]
        counts["requests"] += 1
        counts["tokens"] += completion.tokens
        counts["aborted"] += completion.finish_reason == "abort"
        counts["last_at"] = max(counts["last_at"], completion.ended)
