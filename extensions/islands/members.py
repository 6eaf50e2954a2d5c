"""The records that members of a meeting exchange before their drifts, and the decisions from them.

Every member has the same records in the same order, so all of them decide equally.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from contracts.errors import CannotContinueError

RECORD_BYTES = 512


class IslandRefusedError(CannotContinueError):
    """This island has another configuration or model than the others, and must end."""


@dataclass(frozen=True)
class Member:
    """The record of one island. All islands must have the same `terms`."""

    island: str  # name of the island
    updates: int  # number of updates in the drift; 0 = it adds nothing
    round: int  # round of the anchor
    lineage: str  # lineage of the anchor
    terms: str  # SHA-256 of the settings that must be equal
    newcomer: bool  # True if it has made no round since its process started
    ready: bool  # True if its anchor is of the newest round

    def record(self) -> bytes:
        """Returns the encoded record, padded to RECORD_BYTES."""
        record = json.dumps(asdict(self)).encode().ljust(RECORD_BYTES)
        if len(record) > RECORD_BYTES:
            raise ValueError(f"the island's name is too long: {self.island}")
        return record

    @classmethod
    def read(cls, record: bytes) -> "Member":
        """Returns a decoded record. Raises ValueError for a record of another version of this code."""
        try:
            return cls(**json.loads(record))
        except TypeError as error:
            raise ValueError(f"an island says something else of itself: {error}") from error


def terms(**settings: object) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def refusal(own: int, members: Sequence[Member]) -> str | None:
    """Returns the reason why the member with index `own` must end, or None. Only newcomers are refused."""
    member = members[own]
    if not member.newcomer:
        return None
    namesakes = [i for i, other in enumerate(members) if other.island == member.island and i != own]
    if any(index < own or not members[index].newcomer for index in namesakes):
        return f"there is another island with the name {member.island}: set trainer.island"
    if member.terms != _usual("terms", members):
        return (
            "the other islands have other settings: every, outer_lr, outer_momentum, quantise, model, "
            "trainer_ranks and the inner trainer must be the same on all"
        )
    if member.round == 0 and strays(own, members):
        return "the other islands start from other weights"
    return None


def strays(own: int, members: Sequence[Member]) -> bool:
    """Returns True if the member's anchor differs from that of the other members that are ready."""
    ready = [member for member in members if member.ready]
    return members[own].ready and members[own].lineage != _usual("lineage", ready)


def fit(members: Sequence[Member]) -> bool:
    """Returns True if all members that are ready have the same terms and anchor."""
    ready = [member for member in members if member.ready]
    alike = {(member.terms, member.lineage) for member in ready}
    names = {member.island for member in ready}
    return len(alike) == 1 and len(names) == len(ready)


def _usual(name: str, members: Sequence[Member]) -> str:
    """Returns the most frequent value among members that have made a round, or among all if none has."""
    settled = [member for member in members if not member.newcomer]
    return Counter(getattr(member, name) for member in settled or members).most_common(1)[0][0]
