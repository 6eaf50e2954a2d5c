"""Converts the filters of a list of rollouts to SQL conditions. Opens no database."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

IN_FLIGHT = "in flight"
LARGEST = 2**63  # exceeds SQLite's integers
Whole = Annotated[int, Field(gt=-LARGEST, lt=LARGEST)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Stream = Literal["train", "held-out"]


class NoSuchCursorError(ValueError):
    """The cursor is malformed."""


class Filters(BaseModel):
    """Filters and order of a list of rollouts. Bounds are inclusive; None means no bound."""

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
    mixed: bool = False  # only rollouts of groups whose rewards differ
    # None: mixed first, or newest for held-out rollouts, whose groups are problems of all evaluations
    sort: Literal["mixed first", "newest", "longest", "shortest", "best", "worst"] | None = None

    @property
    def held_out(self) -> bool:
        return self.stream == "held-out"

    @property
    def order(self) -> str:
        return self.sort or ("newest" if self.held_out else "mixed first")

    @property
    def words(self) -> dict[str, str]:
        """The filters whose values are in the table `words`, by kind."""
        kinds = {"domain": self.domain, "status": self.status, "outcome": self.outcome}
        return {kind: word for kind, word in kinds.items() if word and word != IN_FLIGHT}


@dataclass(frozen=True)
class Order:
    """The order of a list by columns, the last of which has a different value in each row."""

    columns: tuple[str, ...]
    direction: Literal["ASC", "DESC"]

    @property
    def by(self) -> str:
        return ", ".join(f"{column} {self.direction}" for column in self.columns)

    @property
    def after(self) -> str:
        """The SQL condition for rows after a cursor."""
        sign = "<" if self.direction == "DESC" else ">"
        values = ", ".join(f":cursor{place}" for place in range(len(self.columns)))
        return f"({', '.join(self.columns)}) {sign} ({values})"

    def cursor_of(self, text: str) -> dict[str, float]:
        """Parses a cursor to the parameters of `after`. Raises NoSuchCursorError."""
        try:
            *others, offset = text.split(":")
            values = [*map(float, others), int(offset)]
        except ValueError:
            values = []
        if len(values) != len(self.columns) or not 0 <= values[-1] < LARGEST:
            raise NoSuchCursorError(f"after={text} is not a cursor of a page in this order")
        return {f"cursor{place}": value for place, value in enumerate(values)}


OFFSET = "rollouts.offset"
ORDERS = {
    "mixed first": Order(("groups.least < groups.most", "groups.group_id", OFFSET), "DESC"),
    "newest": Order((OFFSET,), "DESC"),
    "longest": Order(("tokens", OFFSET), "DESC"),
    "shortest": Order(("tokens", OFFSET), "ASC"),
    "best": Order(("reward", OFFSET), "DESC"),
    "worst": Order(("reward", OFFSET), "ASC"),
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
    """Yields the conditions. Their parameters are named after the filters; words are passed as their ids."""
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
    """Returns the SQL index that finds the first rows soonest, or None if that depends on the run.

    SQLite cannot choose it, because it does not know how rare a word is.
    """
    if filters.order == "mixed first":
        return "by_group"
    if filters.order == "newest":
        return "by_status" if filters.status else "by_outcome" if filters.outcome else None
    return "by_tokens" if ORDERS[filters.order].columns[0] == "tokens" else "by_reward"
