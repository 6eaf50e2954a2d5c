"""The interface of memberships, which decide the islands of a round.

Every rank of an island has a membership, and all ranks get the same answers. Rank r of an island exchanges
messages with rank r of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from extensions.islands.ring import Group


@dataclass(frozen=True)
class Meeting:
    """The islands that will exchange their drifts."""

    rank: int  # rank of this island
    size: int  # number of islands
    round: int  # newest round of the islands
    group: Group | None  # a new group; None if this island is alone
    sources: Sequence[str] = ()  # URLs of kept rounds
    lineage: str | None = None  # most frequent lineage of the newest round; None = unknown


class Membership(Protocol):
    def quorum(self, round: int, lineage: str) -> Meeting | None:
        """Waits for the other islands. Returns None if this island must continue alone.

        round, lineage: those of this island's anchor.
        """

    def commit(self, ok: bool) -> bool:
        """Returns True if the round is made: no rank of this island has passed False.

        ok: True if the exchange has succeeded on this rank. Another island may get another answer.
        """

    def leave(self) -> None:
        """Ends this island's participation."""


class Alone:
    """The membership of an island that makes every round alone."""

    def quorum(self, round: int, lineage: str) -> Meeting:
        return Meeting(rank=0, size=1, round=round, group=None)

    def commit(self, ok: bool) -> bool:
        return ok

    def leave(self) -> None:
        pass
