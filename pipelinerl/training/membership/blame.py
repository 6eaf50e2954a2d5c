"""Blame: the smallest set of members whose failure explains why a weight group broke or did not form.

One member's failure breaks the group, so most failures are not the failing member's fault. The text in
`error` is not parsed, because the contract does not define it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipelinerl.clients.server_control import ContractRefusalError, ServerControl

Server = TypeVar("Server")


@dataclass(frozen=True)
class Ending:
    """The end of an update at one member. `state` is live, failed, receiving (not ended) or silent."""

    state: str
    bytes: int = 0
    first: bool = False  # whether it failed before the trainer left the group


@dataclass(frozen=True)
class Blame(Generic[Server]):
    servers: frozenset[Server]
    certain: bool  # whether each of them certainly failed by itself


def blame(endings: Mapping[Server, Ending], total_bytes: int, timed_out: bool) -> Blame[Server]:
    """Returns the smallest set of members whose failure explains the others'; none if all are live.

    timed_out: whether the broadcast timed out. Then the members that wait for the silent one fail first.
    """
    own = {s for s, e in endings.items() if _failed_by_itself(e, total_bytes)}
    if own:
        return Blame(frozenset(own), certain=True)
    unended = {s for s, e in endings.items() if e.state == "receiving"}
    if unended:
        return Blame(frozenset(unended), certain=True)
    failed = {s: e for s, e in endings.items() if e.state != "live"}
    if not timed_out:  # the others fail only when the trainer leaves the group
        failed = {s: e for s, e in failed.items() if e.first} or failed
    # A member receives nothing after its failure; members to which it forwards buckets may have as few.
    fewest = min((e.bytes for e in failed.values()), default=0)
    suspects = frozenset(s for s, e in failed.items() if e.bytes == fewest)
    return Blame(suspects, certain=len(suspects) < 2)


def _failed_by_itself(ending: Ending, total_bytes: int) -> bool:
    """Returns whether the member does not answer, or failed after it had received everything."""
    return ending.state == "silent" or (ending.state == "failed" and ending.bytes >= total_bytes)


def blame_for_joining(failures: Mapping[ServerControl, Exception]) -> Blame[ServerControl]:
    """Returns the blame for a failed rendezvous.

    A server that only timed out while it waited for others is not to blame, if another one failed itself.
    """
    own = {s for s, f in failures.items() if not waited_for_others(f)}
    return Blame(frozenset(own or failures), certain=bool(own) or len(failures) == 1)


def waited_for_others(failure: Exception) -> bool:
    """Returns whether a server, or rank 0, only timed out while it waited for the others to join."""
    if isinstance(failure, ContractRefusalError):
        return failure.status == 504
    return isinstance(failure, RuntimeError)  # rank 0's own rendezvous
