"""The records that islands exchange before their drifts, and the decisions that follow from them.

Every member has the same records in the same order, so all members make the same decisions.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from contracts.errors import CannotContinueError

RECORD_BYTES = 512


class IslandRefusedError(CannotContinueError):
    """This island's configuration or model differs from the others', so it must end."""


@dataclass(frozen=True)
class Member:
    """The record of one island in a meeting."""

    island: str  # its name
    updates: int  # updates in its drift; 0: it adds nothing to the sum
    round: int  # of its anchor
    lineage: str  # of its anchor
    terms: str  # SHA-256 of the settings that must be equal on all islands
    newcomer: bool  # True if it has made no round since its process started
    ready: bool  # True if its anchor is that of the newest round

    def record(self) -> bytes:
        """Encodes the record in RECORD_BYTES bytes."""
        record = json.dumps(asdict(self)).encode().ljust(RECORD_BYTES)
        if len(record) > RECORD_BYTES:
            raise ValueError(f"the island's name is too long: {self.island}")
        return record

    @classmethod
    def read(cls, record: bytes) -> "Member":
        """Decodes a record. Raises ValueError if its fields differ, as between versions of this code."""
        try:
            return cls(**json.loads(record))
        except TypeError as error:
            raise ValueError(f"an island sent a record with other fields: {error}") from error


def terms(**settings: object) -> str:
    """Returns the SHA-256 of the settings that must be equal on all islands."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def refusal(own: int, members: Sequence[Member]) -> str | None:
    """Returns why the member with index `own` is refused, or None. Only newcomers are refused."""
    member = members[own]
    if not member.newcomer:
        return None
    namesakes = [i for i, other in enumerate(members) if other.island == member.island and i != own]
    if any(index < own or not members[index].newcomer for index in namesakes):
        return f"there is another island with the name {member.island}: set trainer.island"
    if member.terms != _most_common("terms", members):
        return (
            "the other islands have other settings: every, outer_lr, outer_momentum, quantise, model, "
            "trainer_ranks and the inner trainer must be the same on all"
        )
    if member.round == 0 and diverged(own, members):
        return "the other islands start from other weights"
    return None


def diverged(own: int, members: Sequence[Member]) -> bool:
    """Returns True if the anchor of the member differs from that of most ready members."""
    ready = [member for member in members if member.ready]
    return members[own].ready and members[own].lineage != _most_common("lineage", ready)


def can_exchange(members: Sequence[Member]) -> bool:
    """Returns True if the ready members have the same terms and anchor, and different names."""
    ready = [member for member in members if member.ready]
    alike = {(member.terms, member.lineage) for member in ready}
    names = {member.island for member in ready}
    return len(alike) == 1 and len(names) == len(ready)


def _most_common(name: str, members: Sequence[Member]) -> str:
    """Returns the most frequent value, among members that are no newcomers if there are any. First wins."""
    settled = [member for member in members if not member.newcomer]
    return Counter(getattr(member, name) for member in settled or members).most_common(1)[0][0]
