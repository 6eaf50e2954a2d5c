"""Finds the kept rounds that an island must replay to reach the others' anchor.

Must not know how rounds are kept or made.
"""

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
    """Gradients to replay up to round `end`, from `start`, or from this island's anchor if that is None."""

    gradients: Sequence[OuterGradient]
    end: int
    start: Snapshot | None = None


def find_missed(
    rounds: RoundStore, outer: Outer, meeting: Meeting, diverged: bool, deadline: float
) -> Missed | None:
    """Returns the rounds that lead to the meeting's anchor, or None if they are not available.

    diverged: True if this island's anchor differs from the others', so a state is needed to start from.
    deadline: monotonic time after which nothing more is fetched.
    """
    if not diverged:
        gradients = rounds.gradients(outer.round, meeting.round, meeting.sources, deadline)
        if _leads_to(outer, gradients, meeting):
            return Missed(gradients, meeting.round)
    for source in meeting.sources:
        start = rounds.state(meeting.round, [source], deadline)
        if start is None:
            continue
        gradients = rounds.gradients(start.round, meeting.round, meeting.sources, deadline)
        if _leads_to(outer, gradients, meeting, start):
            return Missed(gradients, meeting.round, start)
    return None


def _leads_to(
    outer: Outer,
    gradients: Sequence[OuterGradient] | None,
    meeting: Meeting,
    start: Snapshot | None = None,
) -> bool:
    if gradients is None:
        return False
    try:
        outer.check(gradients, meeting.round, start, meeting.lineage)
    except ReplayError as error:
        log.warning("kept rounds are not used: %s", error)
        return False
    return True


def was_merged(island: str, sent: Sent | None, found: Missed) -> bool:
    """Returns True if the others have merged the drift that this island sent, or if that cannot be known."""
    if sent is None:
        return False
    of_round = [gradient for gradient in found.gradients if gradient.round == sent.round]
    return not of_round or island in of_round[0].updates
