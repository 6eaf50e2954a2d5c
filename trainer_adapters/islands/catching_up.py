"""What an island has to repeat to have the others' anchor. It must not know how rounds are kept or made."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from trainer_adapters.islands.drift import Sent
from trainer_adapters.islands.membership import Meeting
from trainer_adapters.islands.outer import Outer, OuterGradient, ReplayError, Snapshot
from trainer_adapters.islands.rounds import RoundStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Missed:
    """Gradients that lead to round `end`, from `start` or else from the own anchor."""

    gradients: Sequence[OuterGradient]
    end: int
    start: Snapshot | None = None


def missed(rounds: RoundStore, outer: Outer, meeting: Meeting, strays: bool) -> Missed | None:
    """Returns what leads to the meeting's round, or None. From an anchor that `strays` nothing does."""
    if not strays:
        gradients = rounds.gradients(outer.round, meeting.round, meeting.sources)
        if _leads(outer, gradients, meeting.round):
            return Missed(gradients, meeting.round)
    start = rounds.newest(meeting.sources)
    if start is None:
        return None
    gradients = rounds.gradients(start.round, meeting.round, meeting.sources)
    return Missed(gradients, meeting.round, start) if _leads(outer, gradients, meeting.round, start) else None


def _leads(
    outer: Outer, gradients: Sequence[OuterGradient] | None, end: int, start: Snapshot | None = None
) -> bool:
    if gradients is None:
        return False
    try:
        outer.check(gradients, end, start)
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
