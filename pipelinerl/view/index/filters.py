"""Turns the filters of a list of rollouts into the conditions of a query. Pure: SQL text out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

IN_FLIGHT = "in flight"
LARGEST = 2**63  # beyond the integers of SQLite
Sort = Literal["newest", "longest", "shortest", "best", "worst"]


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

    @property
    def words(self) -> dict[str, str]:
        """The filters that ask for one word, by the kind of word."""
        kinds = {"domain": self.domain, "status": self.status, "outcome": self.outcome}
        return {kind: word for kind, word in kinds.items() if word and word != IN_FLIGHT}


@dataclass(frozen=True)
class Order:
    """The order of a list. column: of the table; rows with equal values are ordered by offset."""

    column: str
    direction: Literal["ASC", "DESC"]

    @property
    def by(self) -> str:
        return f"{self.column} {self.direction}, rollouts.offset {self.direction}"

    @property
    def after(self) -> str:
        """The condition for what comes after a cursor."""
        sign = "<" if self.direction == "DESC" else ">"
        return f"({self.column}, rollouts.offset) {sign} (:value, :offset)"


ORDERS = {
    "newest": Order("rollouts.offset", "DESC"),
    "longest": Order("tokens", "DESC"),
    "shortest": Order("tokens", "ASC"),
    "best": Order("reward", "DESC"),
    "worst": Order("reward", "ASC"),
}
BOUNDS = {
    "version_from": "last_version >= :version_from",
    "version_to": "first_version <= :version_to",
    "reward_from": "reward >= :reward_from",
    "reward_to": "reward <= :reward_to",
    "length_from": "tokens >= :length_from",
    "length_to": "tokens <= :length_to",
}
MIXED = (
    "(SELECT least < most FROM groups"
    " WHERE groups.held_out = rollouts.held_out AND groups.group_id = rollouts.group_id)"
)


def conditions_of(filters: Filters) -> Iterator[str]:
    """Yields the conditions. Their parameters are the filters' fields, of words the numbers."""
    yield "rollouts.held_out = :held_out"
    for name, condition in BOUNDS.items():
        if getattr(filters, name) is not None:
            yield condition
    if filters.outcome == IN_FLIGHT:
        yield "outcome IS NULL"
    for kind in filters.words:
        yield f"{kind} = :{kind}"
    if filters.mixed:
        yield MIXED


def best_index(filters: Filters) -> str | None:
    """Returns the index that finds the first rows soonest, or None where that depends on the run.

    SQLite cannot know it, for it does not know how rare a word is.
    """
    if filters.sort == "newest":
        return "by_status" if filters.status else "by_outcome" if filters.outcome else None
    return "by_tokens" if ORDERS[filters.sort].column == "tokens" else "by_reward"


def cursor_of(text: str) -> dict[str, float]:
    """Returns the parameters of `Order.after`. Raises NoSuchCursorError."""
    value, _, offset = text.partition(":")
    try:
        cursor = {"value": float(value), "offset": int(offset)}
    except ValueError:
        cursor = None
    if cursor is None or not 0 <= cursor["offset"] < LARGEST:
        raise NoSuchCursorError(f"after={text} is not a cursor of a page")
    return cursor
