"""Collects the records of one group. `group_story` formats them as text.

An incarnation is the part of a run between two resumptions. Records of other groups are not kept in memory.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from contracts.records import (
    Dated,
    MicroBatchRow,
    Record,
    Resumed,
    Rollout,
    Settled,
    Started,
    TrainingSequence,
)
from pipelinerl.streams.base import Streams
from pipelinerl.streams.events import recorded, recorded_events

STREAMS = ("actor_events", "rollouts", "rows", "preprocessor_events", "trainer_events")


class RowShare(NamedTuple):
    """The group's sequences in one micro-batch of a row of micro-batches."""

    step: int
    index: int  # index of the row within the step
    rank: int  # trainer rank of the micro-batch
    masked_tokens: int  # masked tokens of the row, over all groups
    sequences: list[TrainingSequence]


@dataclass
class Incarnation:
    """The group's records in one incarnation of the run."""

    started: Started | None = None
    rollouts: list[Rollout] = field(default_factory=list)
    shares: list[RowShare] = field(default_factory=list)
    packed: bool = False  # True if the row that closes the group's step was recorded
    masked: dict[str, str] = field(default_factory=dict)  # rollout of the step -> filter's reason
    settled: list[Settled] = field(default_factory=list)
    resumed: Resumed | None = None  # ends the incarnation; None in the newest


class GroupHistory:
    """The history of one group."""

    def __init__(self, group_id: int):
        self.group_id = group_id
        self.incarnations = [Incarnation()]
        self.started: Started | None = None  # None if no such group has started
        self.groups = 0  # number of groups started in the run
        self.began = 0.0  # unix seconds of the first record; 0 if no record has a time
        self._draws: dict[int, list[int]] = {}  # draw -> its groups, in the order in which they started

    @property
    def of_same_draw(self) -> list[int]:
        """The groups with this group's draw, including itself, in the order in which they started."""
        return self._draws[self.started.draw]

    def observe(self, record: Record) -> None:
        """Adds the run's next record."""
        incarnation = self.incarnations[-1]
        match record:
            case Started():
                self.groups += 1
                self._draws.setdefault(record.draw, []).append(record.group_id)
                if record.group_id == self.group_id:
                    self.started = incarnation.started = record
            case Rollout(group_id=self.group_id):
                incarnation.rollouts.append(record)
            case MicroBatchRow():
                self._take_row(incarnation, record)
            case Settled() if self.group_id in record.group_ids:
                incarnation.settled.append(record)
            case Resumed():
                incarnation.resumed = record
                self.incarnations.append(Incarnation())
        self.observe_time(record)

    def observe_time(self, record: Record | None) -> None:
        """Sets `began` to the time of the record if that is earlier."""
        match record:
            case Dated(at=at) | Rollout(started_at=at) if at:
                self.began = min(self.began or at, at)

    def _take_row(self, incarnation: Incarnation, row: MicroBatchRow) -> None:
        for rank, micro_batch in enumerate(row.micro_batches):
            sequences = [sequence for sequence in micro_batch if sequence.group_id == self.group_id]
            if sequences:
                incarnation.shares.append(RowShare(row.step, row.index, rank, row.masked_tokens, sequences))
        if self.group_id in row.group_ids:
            incarnation.packed = True
            incarnation.masked = {rollout: reason for reason, ids in row.masked.items() for rollout in ids}


def read_history(streams: Streams, group_id: int) -> GroupHistory:
    """Reads the group's history from all streams."""
    history = GroupHistory(group_id)
    history.observe_time(next(recorded(streams, "launcher_events"), None))
    for record in recorded_events(streams, STREAMS):
        history.observe(record)
    return history
