"""Writes the tables of an index. `Index` calls it within a transaction. Must not know streams."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from extensions.viewer.index.loads import loads_of
from extensions.viewer.index.schema import INDEXES
from extensions.viewer.index.slim import SlimRollout, Training

Placed = tuple[SlimRollout, int]  # (rollout, offset of its record)
Versions = tuple[int, int] | tuple[None, None]  # (oldest, newest) version of a rollout
OutcomeOf = Callable[[int], str | None]  # maps the id of a group to its outcome


# A later row of the step adds to the training. A resumed run, which begins the step again, replaces it.
ADD_TRAINING = """
INSERT INTO trainings VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (rollout_id) DO UPDATE SET
    row_offset = IIF(step = excluded.step AND row_index < excluded.row_index,
        row_offset, excluded.row_offset),
    lag = IIF(step = excluded.step AND row_index < excluded.row_index,
        COALESCE(MAX(lag, excluded.lag), lag, excluded.lag), excluded.lag),
    advantage = IIF(step = excluded.step AND row_index < excluded.row_index,
        (advantage * sampled + excluded.advantage * excluded.sampled) / MAX(sampled + excluded.sampled, 1),
        excluded.advantage),
    sampled = IIF(step = excluded.step AND row_index < excluded.row_index, sampled, 0) + excluded.sampled,
    step = excluded.step, row_index = excluded.row_index
"""


class Words(dict[tuple[str, str], int]):
    """Maps (kind, word) to the word's id in the table `words`. A lookup of a new word inserts it."""

    def __init__(self, db: sqlite3.Connection):
        rows = db.execute("SELECT id, kind, word FROM words")
        super().__init__({(kind, word): number for number, kind, word in rows})
        self._db = db

    def __missing__(self, key: tuple[str, str]) -> int:
        added = self._db.execute("INSERT INTO words (kind, word) VALUES (?, ?)", key)
        self[key] = added.lastrowid
        return self[key]


class Tables:
    """The writer of the tables, over one connection."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        self._words = Words(db)
        counts = db.execute("SELECT held_out, count(*) FROM rollouts GROUP BY held_out")
        self.counts = Counter(dict(map(tuple, counts)))  # `held_out` -> rollouts
        self._measured_at = 0  # number of rollouts when the tables were analyzed last

    def positions(self) -> dict[str, int]:
        """Returns the offset up to which each stream is indexed."""
        return dict(map(tuple, self._db.execute("SELECT stream, offset FROM positions")))

    def set_position(self, stream: str, offset: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (stream, offset))

    def tune(self) -> None:
        """Creates the SQL indexes of lists and analyzes the tables, again each time they have doubled."""
        if self.counts.total() > 2 * self._measured_at:
            self._db.executescript(INDEXES)
            self._measured_at = self.counts.total()

    def add_rollouts(self, held_out: int, found: Sequence[Placed], outcome_of: OutcomeOf) -> None:
        """Adds rollouts in ascending order of their offsets, with the outcomes known so far."""
        if not found:
            return
        ranges = [rollout.version_range for rollout, _ in found]
        rows = [
            self._row(held_out, rollout, offset, versions, outcome_of)
            for (rollout, offset), versions in zip(found, ranges, strict=True)
        ]
        self._db.executemany(f"INSERT INTO rollouts VALUES ({', '.join('?' * 16)})", rows)
        self._widen_versions(held_out, ranges, [offset for _, offset in found])
        self._widen_groups(held_out, found)
        self._count_requests(rollout for rollout, _ in found)
        if not held_out:
            self._add_loads(rollout for rollout, _ in found)
        self.counts[held_out] += len(rows)

    def add_trainings(self, offset: int, trainings: Iterable[Training]) -> None:
        """Adds the training of the rollouts in the row at the offset. Another row may have more of them."""
        self._db.executemany(
            ADD_TRAINING,
            [(of.rollout_id, offset, of.step, of.advantage, of.lag, of.sampled, of.row) for of in trainings],
        )

    def set_outcomes(self, outcomes: Mapping[int, str | None]) -> None:
        """Sets the outcomes of the rollouts of these groups."""
        self._db.executemany(
            "UPDATE rollouts INDEXED BY by_group SET outcome = :outcome"
            " WHERE held_out = 0 AND group_id = :group AND outcome IS NOT :outcome",
            [
                {"group": group, "outcome": outcome and self._words["outcome", outcome]}
                for group, outcome in outcomes.items()
            ],
        )

    def _row(
        self, held_out: int, rollout: SlimRollout, offset: int, versions: Versions, outcome_of: OutcomeOf
    ) -> tuple:
        outcome = None if held_out else outcome_of(rollout.group_id)
        return (
            held_out,
            offset,
            rollout.rollout_id,
            rollout.group_id,
            rollout.problem_id,
            self._words["domain", rollout.domain],
            self._words["status", rollout.status],
            outcome and self._words["outcome", outcome],
            rollout.reward,
            rollout.solved,
            sum(completion.tokens for completion in rollout.completions),
            len(rollout.completions),
            *versions,
            rollout.started_at,
            rollout.finished_at,
        )

    def _widen_versions(self, held_out: int, ranges: Sequence[Versions], offsets: Sequence[int]) -> None:
        """Extends the range of offsets that contains the rollouts of each version."""
        first_end: dict[int, int] = {}
        last_start: dict[int, int] = {}
        for (first_version, last_version), offset in zip(ranges, offsets, strict=True):
            if first_version is not None:
                last_start[first_version] = offset
                first_end.setdefault(last_version, offset)
        self._db.executemany(
            "INSERT INTO versions VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " first_end = coalesce(first_end, excluded.first_end),"
            " last_start = coalesce(excluded.last_start, last_start)",
            [
                (held_out, version, first_end.get(version), last_start.get(version))
                for version in {**first_end, **last_start}
            ],
        )

    def _widen_groups(self, held_out: int, found: Sequence[Placed]) -> None:
        rewards: dict[int, tuple[float, float]] = {}
        for rollout, _ in found:
            least, most = rewards.get(rollout.group_id, (rollout.reward, rollout.reward))
            rewards[rollout.group_id] = min(least, rollout.reward), max(most, rollout.reward)
        self._db.executemany(
            "INSERT INTO groups VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " least = min(least, excluded.least), most = max(most, excluded.most)",
            [(held_out, group, *bounds) for group, bounds in rewards.items()],
        )

    def _add_loads(self, rollouts: Iterable[SlimRollout]) -> None:
        self._db.executemany(
            "INSERT INTO loads VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET busy_s = busy_s + excluded.busy_s",
            loads_of(completion for rollout in rollouts for completion in rollout.completions),
        )

    def _count_requests(self, rollouts: Iterable[SlimRollout]) -> None:
        requests: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for rollout in rollouts:
            for completion in rollout.completions:
                counts = requests[completion.server]
                counts["requests"] += 1
                counts["tokens"] += completion.tokens
                counts["aborted"] += completion.finish_reason == "abort"
                counts["last_at"] = max(counts["last_at"], completion.ended)
        self._db.executemany(
            "INSERT INTO servers VALUES (:url, :requests, :tokens, :aborted, :last_at)"
            " ON CONFLICT DO UPDATE SET"
            " requests = requests + excluded.requests, tokens = tokens + excluded.tokens,"
            " aborted = aborted + excluded.aborted, last_at = max(last_at, excluded.last_at)",
            [{**counts, "url": url} for url, counts in requests.items()],
        )
