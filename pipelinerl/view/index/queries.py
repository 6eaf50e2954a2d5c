"""Finds rollouts in an index, page by page. A page begins after a cursor, never at a number of rows."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

PAGE = 50  # rollouts
IN_FLIGHT = "in flight"
Sort = Literal["newest", "longest", "shortest", "best", "worst"]
ORDERS: dict[str, tuple[str, str]] = {  # column, and its direction
    "newest": ("rollouts.offset", "DESC"),
    "longest": ("tokens", "DESC"),
    "shortest": ("tokens", "ASC"),
    "best": ("reward", "DESC"),
    "worst": ("reward", "ASC"),
}
COLUMNS = """
    rollouts.held_out, rollouts.offset, rollouts.rollout_id, rollouts.group_id, problem,
    (SELECT word FROM words WHERE id = domain) AS domain,
    (SELECT word FROM words WHERE id = status) AS status,
    (SELECT word FROM words WHERE id = outcome) AS outcome,
    reward, success, tokens, turns, first_version, last_version, started_at, finished_at,
    step, advantage, lag, tokens_in_loss, row_offset
"""
TRAINED = "LEFT JOIN trainings ON trainings.rollout_id = rollouts.rollout_id AND rollouts.held_out = 0"


class NoSuchCursorError(ValueError):
    """A cursor is not one that a page has given."""


@dataclass(frozen=True)
class Filters:
    """What a list of rollouts shows, and in which order. Bounds are inclusive; None is no bound."""

    held_out: bool = False
    version_from: int | None = None
    version_to: int | None = None
    domain: str | None = None
    status: str | None = None
    outcome: str | None = None
    reward_from: float | None = None
    reward_to: float | None = None
    length_from: int | None = None
    length_to: int | None = None
    mixed: bool = False  # only of groups whose rewards differ
    sort: Sort = "newest"


class Found(NamedTuple):
    rows: list[sqlite3.Row]
    next: str | None  # the cursor of the next page


class Queries:
    """Reads an index through a connection of its own."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db

    def page(self, filters: Filters, after: str | None = None) -> Found:
        """Returns the next rollouts. Raises NoSuchCursorError for an `after` that no page has given."""
        column, direction = ORDERS[filters.sort]
        conditions = dict(_conditions(filters))
        if after is not None:
            value, offset = _cursor(after)
            sign = "<" if direction == "DESC" else ">"
            conditions[f"({column}, rollouts.offset) {sign} (:value, :offset)"] = {
                "value": value,
                "offset": offset,
            }
        where = " AND ".join(conditions)
        values = {name: value for part in conditions.values() for name, value in part.items()}
        # The rows of the page are found first, because only these are joined with the other tables.
        rows = self._db.execute(
            f"WITH page AS (SELECT held_out, offset FROM rollouts WHERE {where}"
            f" ORDER BY {column} {direction}, rollouts.offset {direction} LIMIT {PAGE + 1})"
            f" SELECT {COLUMNS} FROM page JOIN rollouts USING (held_out, offset) {TRAINED}"
            f" ORDER BY {column} {direction}, rollouts.offset {direction}",
            values,
        ).fetchall()
        shown = rows[:PAGE]
        if len(rows) <= PAGE:
            return Found(shown, None)
        last = shown[-1]
        return Found(shown, f"{last[column.rpartition('.')[2]]!r}:{last['offset']}")

    def rollout(self, held_out: bool, offset: int) -> sqlite3.Row | None:
        """Returns the rollout whose record begins at the offset."""
        return next(self._rollouts("rollouts.offset = ?", held_out, offset), None)

    def of_group(self, held_out: bool, group: int) -> list[sqlite3.Row]:
        """Returns the rollouts of a group, in the order in which they ended."""
        return list(self._rollouts("group_id = ? ORDER BY rollouts.offset", held_out, group))

    def finished_between(self, began: float, ended: float, most: int) -> list[sqlite3.Row]:
        """Returns training rollouts under way between two unix times: the `most` that ended last."""
        found = self._db.execute(
            "SELECT offset, rollout_id, group_id, tokens, started_at, finished_at,"
            " (SELECT word FROM words WHERE id = status) AS status"
            " FROM rollouts WHERE held_out = 0 AND finished_at > ? AND started_at < ?"
            " ORDER BY finished_at DESC LIMIT ?",
            (began, ended, most),
        )
        return found.fetchall()

    def count_between(self, began: float, ended: float) -> int:
        """Returns how many training rollouts were under way between two times."""
        return self._number(
            "SELECT count(*) FROM rollouts WHERE held_out = 0 AND finished_at > ? AND started_at < ?",
            began,
            ended,
        )

    def neighbours(self, held_out: bool, offset: int) -> tuple[int | None, int | None]:
        """Returns the offsets of the rollouts before and after this one in their stream."""
        before = self._number(
            "SELECT max(offset) FROM rollouts WHERE held_out = ? AND offset < ?", held_out, offset
        )
        after = self._number(
            "SELECT min(offset) FROM rollouts WHERE held_out = ? AND offset > ?", held_out, offset
        )
        return before, after

    def newest(self, held_out: bool) -> int:
        """Returns the offset of the newest rollout, or -1 where there is none."""
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
        """Returns what each server has done, by its URL."""
        return {row["url"]: row for row in self._db.execute("SELECT * FROM servers")}

    def spread_groups(self, most: int) -> list[int]:
        """Returns groups at even distances over the run, of at most so many rollouts together.

        Where there are any, they are groups whose rewards differ.
        """
        found = self._db.execute(
            "SELECT group_id, least < most FROM groups WHERE held_out = 0 ORDER BY group_id"
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

    def _rollouts(self, condition: str, held_out: bool, value: int) -> Iterator[sqlite3.Row]:
        return self._db.execute(
            f"SELECT {COLUMNS} FROM rollouts {TRAINED} WHERE held_out = ? AND {condition}", (held_out, value)
        )

    def _number(self, query: str, *values: float) -> int | None:
        return self._db.execute(query, values).fetchone()[0]


BOUNDS = {
    "version_from": "last_version >= :version_from",
    "version_to": "first_version <= :version_to",
    "reward_from": "reward >= :reward_from",
    "reward_to": "reward <= :reward_to",
    "length_from": "tokens >= :length_from",
    "length_to": "tokens <= :length_to",
}


def _conditions(filters: Filters) -> Iterator[tuple[str, dict[str, object]]]:
    yield "rollouts.held_out = :held_out", {"held_out": filters.held_out}
    for name, condition in BOUNDS.items():
        if (bound := getattr(filters, name)) is not None:
            yield condition, {name: bound}
    if filters.outcome == IN_FLIGHT:
        yield "outcome IS NULL", {}
    for kind in ("domain", "status", "outcome"):
        word = getattr(filters, kind)
        if word and word != IN_FLIGHT:
            yield f"{kind} = (SELECT id FROM words WHERE kind = '{kind}' AND word = :{kind})", {kind: word}
    if filters.mixed:
        yield (
            (
                "(SELECT least < most FROM groups"
                " WHERE groups.held_out = rollouts.held_out AND groups.group_id = rollouts.group_id)"
            ),
            {},
        )


def _cursor(text: str) -> tuple[float, int]:
    value, _, offset = text.partition(":")
    try:
        return float(value), int(offset)
    except ValueError:
        raise NoSuchCursorError(f"after={text} is not a cursor of a page") from None
