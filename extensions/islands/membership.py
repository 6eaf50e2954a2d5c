"""Who takes part in a round: the interface between an island and what tells it of the others.

Every rank of an island has a membership of its own, and all ranks get the same answers. Rank r of an island
exchanges messages with rank r of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from extensions.islands.ring import Group


@dataclass(frozen=True)
class Meeting:
    """The islands that are about to exchange their drifts."""

    rank: int  # this island's place
    size: int  # number of islands
    round: int  # the newest that one of them has reached
    group: Group | None  # None if this island is the only one; never one in which an exchange has failed
    sources: Sequence[str] = ()  # of kept rounds
    lineage: str | None = None  # of the anchor of that round; None: not known before the exchange


class Membership(Protocol):
    def quorum(self, round: int, lineage: str) -> Meeting | None:
        """Waits for the other islands. Returns None if this island has to continue alone for now.

        round, lineage: of this island's anchor.
        """

    def commit(self, ok: bool) -> bool:
        """Returns whether the round is made, after the exchange has succeeded here or not.

        It is False on every rank of this island if one passes False. Another island may get another answer.
        """

    def leave(self) -> None:
        """Tells the others that this island takes part no more."""


class Alone:
    """The membership of an island without others: it makes every round by itself."""

    def quorum(self, round: int, lineage: str) -> Meeting:
        return Meeting(rank=0, size=1, round=round, group=None)

    def commit(self, ok: bool) -> bool:
        return ok

    def leave(self) -> None:
        pass
