"""Queries an index for rollouts, page by page. A page begins after a cursor, not at a row number."""

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from extensions.viewer.index.filters import ORDERS, Filters, best_index, conditions_of
from extensions.viewer.index.loads import MINUTE

PAGE = 50  # rollouts
SORTED = 5000  # most rollouts that are sorted without an index
FEW = "few"
NARROW = 0.1  # largest share of a stream for which a range of offsets is scanned without an index
COLUMNS = """
    rollouts.held_out, rollouts.offset, rollouts.rollout_id, rollouts.group_id, problem,
    (SELECT word FROM words WHERE id = domain) AS domain,
    (SELECT word FROM words WHERE id = status) AS status,
    (SELECT word FROM words WHERE id = outcome) AS outcome,
    reward, success, tokens, turns, first_version, last_version, started_at, finished_at,
    step, advantage, lag, row_offset
"""
TRAINED = "LEFT JOIN trainings ON trainings.rollout_id = rollouts.rollout_id AND rollouts.held_out = 0"


def _tables(filters: Filters, hint: str) -> str:
    """Returns the tables that a page is found in, joined in the order in which they are read."""
    if filters.order != "mixed first":
        return f"rollouts {hint}"
    same = "groups.held_out = :held_out AND groups.group_id = rollouts.group_id"
    hint = hint.replace("NOT INDEXED", "INDEXED BY by_group")
    if hint == FEW:
        return f"rollouts CROSS JOIN groups ON {same}"
    return f"groups INDEXED BY by_difference CROSS JOIN rollouts {hint} ON {same}"


class Found(NamedTuple):
    rows: list[sqlite3.Row]
    next: str | None  # the cursor of the next page


class Queries:
    """The queries of an index, over one connection."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db

    def page(self, filters: Filters, after: str | None = None) -> Found:
        """Returns the page after the cursor `after`. Raises NoSuchCursorError if it is malformed."""
        order = ORDERS[filters.order]
        conditions = list(conditions_of(filters))
        values = filters.model_dump() | {"held_out": filters.held_out}
        if after is not None:
            conditions.append(order.after)
            values |= order.cursor_of(after)
        numbers = {kind: self._number_of(kind, word) for kind, word in filters.words.items()}
        if None in numbers.values():
            return Found([], None)
        hint, offsets = self._hint_and_range(filters)
        if offsets:
            conditions.append("rollouts.offset BETWEEN :first AND :end")
        if filters.order == "mixed first" and self._are_few(conditions, values | numbers | offsets):
            hint = FEW
        keys = ", ".join(f"{column} AS key{place}" for place, column in enumerate(order.columns))
        # The rows of the page are found first, because only these are joined with the other tables.
        rows = self._db.execute(
            f"WITH page AS (SELECT rollouts.held_out, rollouts.offset, {keys}"
            f" FROM {_tables(filters, hint)} WHERE {' AND '.join(conditions)}"
            f" ORDER BY {order.by} LIMIT {PAGE + 1})"
            f" SELECT {COLUMNS}, page.* FROM page JOIN rollouts USING (held_out, offset) {TRAINED}"
            f" ORDER BY {', '.join(f'key{place} {order.direction}' for place in range(len(order.columns)))}",
            values | numbers | offsets,
        ).fetchall()
        shown = rows[:PAGE]
        if len(rows) <= PAGE:
            return Found(shown, None)
        return Found(shown, ":".join(repr(shown[-1][f"key{place}"]) for place in range(len(order.columns))))

    def _are_few(self, conditions: list[str], values: dict[str, Any]) -> bool:
        """Returns True if the rollouts that meet the conditions can be sorted in a moment."""
        of_rollouts = " AND ".join(condition for condition in conditions if "groups." not in condition)
        query = f"SELECT count(*) FROM (SELECT 1 FROM rollouts WHERE {of_rollouts} LIMIT {SORTED + 1})"
        return self._db.execute(query, values).fetchone()[0] <= SORTED

    def _hint_and_range(self, filters: Filters) -> tuple[str, dict[str, int]]:
        """Returns the query's index hint, and the range of offsets that contains the rows, if known."""
        name = best_index(filters)
        hint = f"INDEXED BY {name}" if name and self._has_index(name) else ""
        if filters.version_from is None and filters.version_to is None:
            return hint, {}
        newest = self.newest(filters.held_out)
        first = self._first_end(filters) if filters.version_from is not None else 0
        end = self._last_start(filters) if filters.version_to is not None else newest
        if first is None or end is None:
            return "NOT INDEXED", {"first": -1, "end": -1}
        is_narrow = end - first < NARROW * newest
        return "NOT INDEXED" if is_narrow else hint, {"first": first, "end": end}

    def _first_end(self, filters: Filters) -> int | None:
        """Returns the offset before which no rollout has tokens of `version_from` or a newer version."""
        return self._number(
            "SELECT min(first_end) FROM versions WHERE held_out = ? AND version >= ?",
            filters.held_out,
            filters.version_from,
        )

    def _last_start(self, filters: Filters) -> int | None:
        """Returns the offset after which no rollout has tokens of `version_to` or an older version."""
        return self._number(
            "SELECT max(last_start) FROM versions WHERE held_out = ? AND version <= ?",
            filters.held_out,
            filters.version_to,
        )

    def _has_index(self, name: str) -> bool:
        return bool(
            self._number("SELECT count(*) FROM sqlite_master WHERE type = 'index' AND name = ?", name)
        )

    def _number_of(self, kind: str, word: str) -> int | None:
        found = self._db.execute("SELECT id FROM words WHERE kind = ? AND word = ?", (kind, word)).fetchone()
        return found and found[0]

    def rollout(self, held_out: bool, offset: int) -> sqlite3.Row | None:
        """Returns the rollout whose record begins at the offset, or None."""
        return next(self._rollouts("", "rollouts.offset = ?", held_out, offset), None)

    def of_group(self, held_out: bool, group: int) -> list[sqlite3.Row]:
        """Returns the rollouts of a group, in the order in which they ended."""
        return list(
            self._rollouts("INDEXED BY by_group", "group_id = ? ORDER BY rollouts.offset", held_out, group)
        )

    def finished_between(self, began: float, ended: float, most: int) -> list[sqlite3.Row]:
        """Returns training rollouts that ran between two unix times: the `most` that ended last."""
        found = self._db.execute(
            "SELECT offset, rollout_id, (SELECT word FROM words WHERE id = status) AS status"
            " FROM rollouts WHERE held_out = 0 AND finished_at > ? AND started_at < ?"
            " ORDER BY finished_at DESC LIMIT ?",
            (began, ended, most),
        )
        return found.fetchall()

    def has_more_between(self, began: float, ended: float, most: int) -> bool:
        """Returns True if more than `most` training rollouts ran between two unix times."""
        found = self._number(
            "SELECT count(*) FROM (SELECT 1 FROM rollouts"
            " WHERE held_out = 0 AND finished_at > ? AND started_at < ? LIMIT ?)",
            began,
            ended,
            most + 1,
        )
        return found > most

    def loads_between(self, began: float, ended: float, width: int) -> list[sqlite3.Row]:
        """Returns the time that requests took, by server, version, and bins of `width` seconds.

        Bins of whole minutes are read from the times by minute.
        """
        found = self._db.execute(
            "SELECT url, second - second % :width AS second, version, sum(busy_s) AS busy_s FROM loads"
            " WHERE length = :length AND second > :began - :width AND second < :ended"
            " GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
            {"began": began, "ended": ended, "width": width, "length": 1 if width % MINUTE else MINUTE},
        )
        return found.fetchall()

    def crossings(self, most: int) -> list[sqlite3.Row]:
        """Returns the updates that some of the `most` last rollouts cross, newest first.

        A row has the version, the number of rollouts that end with it, and their mean duration in seconds.
        """
        found = self._db.execute(
            "SELECT last_version AS version, count(*) AS rollouts, avg(finished_at - started_at) AS seconds"
            " FROM (SELECT * FROM rollouts WHERE held_out = 0 ORDER BY offset DESC LIMIT :most)"
            " WHERE first_version < last_version GROUP BY last_version ORDER BY last_version DESC",
            {"most": most},
        )
        return found.fetchall()

    def neighbours(self, held_out: bool, offset: int) -> tuple[int | None, int | None]:
        """Returns the offsets of the previous and the next rollout of the stream."""
        before = self._number(
            "SELECT max(offset) FROM rollouts WHERE held_out = ? AND offset < ?", held_out, offset
        )
        after = self._number(
            "SELECT min(offset) FROM rollouts WHERE held_out = ? AND offset > ?", held_out, offset
        )
        return before, after

    def newest(self, held_out: bool) -> int:
        """Returns the offset of the newest rollout, or -1 if there is none."""
        offset = self._number("SELECT max(offset) FROM rollouts WHERE held_out = ?", held_out)
        return -1 if offset is None else offset

    def count_since(self, held_out: bool, offset: int) -> int:
        return self._number(
            "SELECT count(*) FROM rollouts WHERE held_out = ? AND offset > ?", held_out, offset
        )

    def words(self, kind: str) -> list[str]:
        found = self._db.execute("SELECT word FROM words WHERE kind = ? ORDER BY word", (kind,))
        return [word for (word,) in found]

    def servers(self) -> dict[str, sqlite3.Row]:
        """Returns the request counts of each server, by URL."""
        return {row["url"]: row for row in self._db.execute("SELECT * FROM servers")}

    def spread_groups(self, most: int, first: int) -> list[int]:
        """Returns evenly spaced training groups with at most `most` rollouts in total.

        Only groups with different rewards are returned, if there are any. first: offset of the oldest record.
        """
        found = self._db.execute(
            "SELECT group_id, least < most FROM groups WHERE held_out = 0 AND"
            " (SELECT min(offset) FROM rollouts INDEXED BY by_group WHERE rollouts.held_out = 0"
            " AND rollouts.group_id = groups.group_id) >= ? ORDER BY group_id",
            (first,),
        ).fetchall()
        mixed = [group for group, differs in found if differs]
        groups = mixed or [group for group, _ in found]
        if not groups:
            return []
        size = self._number("SELECT count(*) FROM rollouts WHERE held_out = 0 AND group_id = ?", groups[0])
        every = -(-len(groups) * size // most)
        return groups[::every]

    def newest_offsets(self, most: int) -> list[int]:
        """Returns the offsets of the newest training rollouts."""
        found = self._db.execute(
            "SELECT offset FROM rollouts WHERE held_out = 0 ORDER BY offset DESC LIMIT ?", (most,)
        )
        return [offset for (offset,) in found]

    def _rollouts(self, hint: str, condition: str, held_out: bool, value: int) -> Iterator[sqlite3.Row]:
        return self._db.execute(
            f"SELECT {COLUMNS} FROM rollouts {hint} {TRAINED} WHERE held_out = ? AND {condition}",
            (held_out, value),
        )

    def _number(self, query: str, *values: float) -> int | None:
        return self._db.execute(query, values).fetchone()[0]
