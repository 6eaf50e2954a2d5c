"""Converts the filters of a list of rollouts to SQL conditions. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

IN_FLIGHT = "in flight"
LARGEST = 2**63  # above the integers of SQLite
Whole = Annotated[int, Field(gt=-LARGEST, lt=LARGEST)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Stream = Literal["train", "held-out"]


class NoSuchCursorError(ValueError):
    """A cursor is not from a page."""


class Filters(BaseModel):
    """The filters and the order of a list of rollouts. Bounds are inclusive; None = no bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: Stream = "train"
    version_from: Whole | None = None
    version_to: Whole | None = None
    domain: str | None = None
    status: str | None = None
    outcome: str | None = None
    reward_from: Number | None = None
    reward_to: Number | None = None
    length_from: Whole | None = None
    length_to: Whole | None = None
    mixed: bool = False  # True for only groups of different rewards
    sort: Literal["newest", "longest", "shortest", "best", "worst"] = "newest"

    @property
    def held_out(self) -> bool:
        return self.stream == "held-out"

    @property
    def words(self) -> dict[str, str]:
        """The filters by a word, by the kind of word."""
        kinds = {"domain": self.domain, "status": self.status, "outcome": self.outcome}
        return {kind: word for kind, word in kinds.items() if word and word != IN_FLIGHT}


@dataclass(frozen=True)
class Order:
    """The order of a list by a column of the table. Rows with equal values are ordered by offset."""

    column: str
    direction: Literal["ASC", "DESC"]

    @property
    def by(self) -> str:
        return f"{self.column} {self.direction}, rollouts.offset {self.direction}"

    @property
    def after(self) -> str:
        """The condition of rows after a cursor."""
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
    """Yields the conditions, whose parameters are the filters' fields, with words as numbers."""
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
    """Returns the fastest index for the first rows, or None if that depends on the run.

    SQLite cannot choose it, because it does not know how rare a word is.
    """
    if filters.sort == "newest":
        return "by_status" if filters.status else "by_outcome" if filters.outcome else None
    return "by_tokens" if ORDERS[filters.sort].column == "tokens" else "by_reward"


def cursor_of(text: str) -> dict[str, float]:
    """Returns the parameters of `Order.after` in a cursor. Raises NoSuchCursorError."""
    value, _, offset = text.partition(":")
    try:
        cursor = {"value": float(value), "offset": int(offset)}
    except ValueError:
        cursor = None
    if cursor is None or not 0 <= cursor["offset"] < LARGEST:
        raise NoSuchCursorError(f"after={text} is not a cursor of a page")
    return cursor
