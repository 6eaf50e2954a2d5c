"""Collects what a run has recorded about one group, launch by launch. `group_story` formats it as text.

Records are read one at a time, and records of other groups are not kept.
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
    """The group's sequences in one micro-batch of a row."""

    step: int
    index: int  # index of the row within the step
    rank: int
    masked_tokens: int  # masked tokens of the row, all groups together
    sequences: list[TrainingSequence]


@dataclass
class Launch:
    """One launch's records about the group. Each launch but the newest ended with a resumption."""

    started: Started | None = None
    rollouts: list[Rollout] = field(default_factory=list)
    shares: list[RowShare] = field(default_factory=list)
    packed: bool = False  # the row that closes its step was recorded
    masked: dict[str, str] = field(default_factory=dict)  # rollout of its step -> reason of the filter
    settled: list[Settled] = field(default_factory=list)
    resumed: Resumed | None = None


class GroupHistory:
    """A run's launches, with their records about one group, and the groups with the same draw."""

    def __init__(self, group_id: int):
        self.group_id = group_id
        self.launches = [Launch()]
        self.started: Started | None = None  # None: no such group
        self.groups = 0  # number of groups started in the run
        self.began = 0.0  # unix seconds of the first record; 0 if no record has a time
        self._draws: dict[int, list[int]] = {}  # draw -> its groups, in the order of their start

    @property
    def of_same_draw(self) -> list[int]:
        """The groups with this group's draw, including itself, in the order of their start."""
        return self._draws[self.started.draw]

    def observe(self, record: Record) -> None:
        """Processes the run's next record."""
        launch = self.launches[-1]
        match record:
            case Started():
                self.groups += 1
                self._draws.setdefault(record.draw, []).append(record.group_id)
                if record.group_id == self.group_id:
                    self.started = launch.started = record
            case Rollout(group_id=self.group_id):
                launch.rollouts.append(record)
            case MicroBatchRow():
                self._take_row(launch, record)
            case Settled() if self.group_id in record.group_ids:
                launch.settled.append(record)
            case Resumed():
                launch.resumed = record
                self.launches.append(Launch())
        self.observe_time(record)

    def observe_time(self, record: Record | None) -> None:
        """Updates the start time of the run from a record that has a time."""
        match record:
            case Dated(at=at) | Rollout(started_at=at) if at:
                self.began = min(self.began or at, at)

    def _take_row(self, launch: Launch, row: MicroBatchRow) -> None:
        for rank, micro_batch in enumerate(row.micro_batches):
            sequences = [sequence for sequence in micro_batch if sequence.group_id == self.group_id]
            if sequences:
                launch.shares.append(RowShare(row.step, row.index, rank, row.masked_tokens, sequences))
        if self.group_id in row.group_ids:
            launch.packed = True
            launch.masked = {rollout: reason for reason, ids in row.masked.items() for rollout in ids}


def read_history(streams: Streams, group_id: int) -> GroupHistory:
    """Returns the group's history from all streams. `started` is None if no such group exists."""
    history = GroupHistory(group_id)
    history.observe_time(next(recorded(streams, "launcher_events"), None))
    for record in recorded_events(streams, STREAMS):
        history.observe(record)
    return history
