"""Finds the gradients that move an island's anchor to that of the others."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from extensions.islands.drift import Sent
from extensions.islands.membership import Meeting
from extensions.islands.outer import Outer, OuterGradient, ReplayError, Snapshot
from extensions.islands.rounds import RoundStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Missed:
    """Gradients that lead to round `end`, from `start`, or from this island's anchor if it is None."""

    gradients: Sequence[OuterGradient]
    end: int
    start: Snapshot | None = None


def missed(
    rounds: RoundStore, outer: Outer, meeting: Meeting, strays: bool, deadline: float
) -> Missed | None:
    """Returns the gradients that lead to the meeting's round, or None if they cannot be fetched.

    strays: True if this island's anchor differs from that of the others, so they cannot start from it.
    deadline: monotonic time at which fetching ends.
    """
    if not strays:
        gradients = rounds.gradients(outer.round, meeting.round, meeting.sources, deadline)
        if _leads(outer, gradients, meeting):
            return Missed(gradients, meeting.round)
    for source in meeting.sources:
        start = rounds.state(meeting.round, [source], deadline)
        if start is None:
            continue
        gradients = rounds.gradients(start.round, meeting.round, meeting.sources, deadline)
        if _leads(outer, gradients, meeting, start):
            return Missed(gradients, meeting.round, start)
    return None


def _leads(
    outer: Outer,
    gradients: Sequence[OuterGradient] | None,
    meeting: Meeting,
    start: Snapshot | None = None,
) -> bool:
    """Returns True if the gradients lead to the anchor of the meeting."""
    if gradients is None:
        return False
    try:
        outer.check(gradients, meeting.round, start, meeting.lineage)
    except ReplayError as error:
        log.warning("kept rounds are not used: %s", error)
        return False
    return True


def was_merged(island: str, sent: Sent | None, found: Missed) -> bool:
    """Returns True if the others have merged the drift that the island sent, or may have."""
    if sent is None:
        return False
    of_round = [gradient for gradient in found.gradients if gradient.round == sent.round]
    return not of_round or island in of_round[0].updates
