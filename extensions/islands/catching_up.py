"""What an island has to repeat to have the others' anchor. It must not know how rounds are kept or made."""

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
    """Gradients that lead to round `end`, from `start` or else from the own anchor."""

    gradients: Sequence[OuterGradient]
    end: int
    start: Snapshot | None = None


def missed(
    rounds: RoundStore, outer: Outer, meeting: Meeting, strays: bool, deadline: float
) -> Missed | None:
    """Returns what leads to the meeting's round, or None. From an anchor that `strays` nothing does.

    deadline: the monotonic time after which nothing more is fetched.
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
    """Returns whether the gradients lead to the anchor of the meeting."""
    if gradients is None:
        return False
    try:
        outer.check(gradients, meeting.round, start, meeting.lineage)
    except ReplayError as error:
        log.warning("kept rounds are not used: %s", error)
        return False
    return True


def was_merged(island: str, sent: Sent | None, found: Missed) -> bool:
    """Returns whether the others have merged what the island sent. Where it cannot be known, they have."""
    if sent is None:
        return False
    of_round = [gradient for gradient in found.gradients if gradient.round == sent.round]
    return not of_round or island in of_round[0].updates
