"""Who broke a weight update, judged from what every member of the weight group says of it.

One member's failure breaks the group, so most of those that fail are innocent. What a server writes in
`error` is not read: the contract leaves it free.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Server = TypeVar("Server")


@dataclass(frozen=True)
class Ending:
    """How an update ended at one member: `state` is live, failed, receiving (it did not end) or silent."""

    state: str
    bytes: int = 0
    first: bool = False  # it had failed while the trainer still held the group


@dataclass(frozen=True)
class Blame(Generic[Server]):
    servers: frozenset[Server]
    certain: bool  # that each of them failed by itself


def blame(endings: Mapping[Server, Ending], total_bytes: int, timed_out: bool) -> Blame[Server]:
    """Returns the fewest members whose failure explains the others'; none if all are live.

    timed_out: the broadcast ended in silence. Then those that wait for the silent one give up first.
    """
    own = {s for s, e in endings.items() if _failed_by_itself(e, total_bytes)}
    if own:
        return Blame(frozenset(own), certain=True)
    unended = {s for s, e in endings.items() if e.state == "receiving"}
    if unended:
        return Blame(frozenset(unended), certain=True)
    failed = {s: e for s, e in endings.items() if e.state != "live"}
    if not timed_out:  # the others learn of it from the trainer, when that leaves the group
        failed = {s: e for s, e in failed.items() if e.first} or failed
    # A member receives nothing after its failure; whoever it passes buckets on to may have as few.
    fewest = min((e.bytes for e in failed.values()), default=0)
    suspects = frozenset(s for s, e in failed.items() if e.bytes == fewest)
    return Blame(suspects, certain=len(suspects) < 2)


def _failed_by_itself(ending: Ending, total_bytes: int) -> bool:
    """Whether it does not answer, or failed although it had received everything."""
    return ending.state == "silent" or (ending.state == "failed" and ending.bytes >= total_bytes)
