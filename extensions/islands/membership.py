"""The interface through which an island finds the other islands for a round.

Each rank of an island has a Membership, and all ranks get the same answers. Rank r of an island exchanges
messages with rank r of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from extensions.islands.ring import Group


@dataclass(frozen=True)
class Meeting:
    """The islands that are about to exchange their drifts."""

    rank: int  # rank of this island
    size: int  # number of islands
    round: int  # newest round of an island
    group: Group | None  # a new group for each meeting; None if this island is the only one
    sources: Sequence[str] = ()  # URLs of kept rounds
    lineage: str | None = None  # most frequent lineage of that round; None if unknown


class Membership(Protocol):
    def quorum(self, round: int, lineage: str) -> Meeting | None:
        """Waits for the other islands. Returns None if this island must continue alone for now.

        round, lineage: round and lineage of this island's anchor.
        """

    def commit(self, ok: bool) -> bool:
        """Returns True if every rank of this island passes True. Another island may get another answer.

        ok: True if the exchange has succeeded on this rank.
        """

    def leave(self) -> None:
        """Stops taking part in rounds."""


class Alone:
    """The membership of an island that makes every round alone."""

    def quorum(self, round: int, lineage: str) -> Meeting:
        return Meeting(rank=0, size=1, round=round, group=None)

    def commit(self, ok: bool) -> bool:
        return ok

    def leave(self) -> None:
        pass
