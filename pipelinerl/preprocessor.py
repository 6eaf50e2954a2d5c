"""The preprocessor forms training steps from finished groups, and writes packed rows as soon as they are
full.

Run by the launcher: `python -m pipelinerl.preprocessor --run-dir DIR`. Reads `rollouts`, and the events of
trainer and actor. Writes `rows`, and a `Settled` with the reason for every dropped group to
`preprocessor_events`.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from contracts.records import (
    ActorStopped,
    DropReason,
    MicroBatchRow,
    Record,
    ReferenceCondemned,
    Rollout,
    Settled,
    StepClosed,
    TrainingDone,
)
from pipelinerl.batching.group_counts import GroupCounts
from pipelinerl.batching.of_run import build_formation
from pipelinerl.batching.open_work import OpenWork
from pipelinerl.batching.step_formation import Groups
from pipelinerl.clients.reference import Reference
from pipelinerl.config import RunConfig
from pipelinerl.errors import GaveUpError
from pipelinerl.filters import SuccessBand, ZeroAdvantage
from pipelinerl.health import EQUAL_GROUPS, Alarm, Streak
from pipelinerl.heartbeat import EVERY_S, Heartbeat
from pipelinerl.metrics import MetricsWriter
from pipelinerl.process import REFERENCE_VARIABLE, process_main
from pipelinerl.spans import Spans
from pipelinerl.streams import StreamReader
from pipelinerl.streams.events import latest_resumption
from pipelinerl.streams.of_run import open_streams

log = logging.getLogger(__name__)
UNDIFFERING = (ZeroAdvantage.reason, SuccessBand.reason)  # why groups of equal rewards are dropped
POLL_S = 0.1  # between two reads of the trainer's events
SCORES_POLL_S = 0.01  # between two checks for rows that the reference server has scored
METRICS_EVERY_S = 1.0


class Preprocessor:
    def __init__(self, config: RunConfig, run_dir: Path, token: str | None):
        self._config = config
        self._heartbeat = Heartbeat(run_dir, "preprocessor", config.world.heartbeat_timeout_s)
        streams = open_streams(config, run_dir, on_wait=self._heartbeat.beat)
        resumed = latest_resumption(streams)
        self._groups = Groups(config.group_size)
        self._formation = build_formation(config, first_step=resumed.version)
        self._streams = streams
        self._ends = resumed.ends
        self._replayed = set(resumed.replayed)
        self._rollouts = streams.reader("rollouts")
        self._offset = max(resumed.rollouts_offset, self._rollouts.first_offset())
        self._rows = streams.writer("rows")
        self._events = streams.writer("preprocessor_events")
        self._metrics = MetricsWriter(run_dir, "preprocessor")
        self._spans = Spans(run_dir, "preprocessor")
        self._scored_s = 0.0  # seconds of scoring, summed over rows
        self._made = resumed.version  # newest version of the trainer
        self._unscored: deque[MicroBatchRow] = deque()  # rows whose scoring has not started
        self._reference = None
        if config.reference:
            self._reference_version = config.reference.version_at(resumed.version)  # scored the last row
            self._reference = Reference(
                os.environ[REFERENCE_VARIABLE],
                token,
                start_timeout_s=config.world.server_start_timeout_s,
                score_timeout_s=config.rollout.timeout_s,
                wait_for=self._heartbeat.wait_for,
                on_silence=self._condemn_reference,
            )
        self._open = OpenWork()
        self._rows.protect(self._rows.end)
        self._counts = GroupCounts()
        self._dropped_in_a_row = 0  # groups dropped since the last kept one
        self._equal = Streak("equal_rewards", bool, steps=EQUAL_GROUPS)
        self._next_metrics = 0.0

    def run(self) -> None:
        """Forms steps until the trainer is done, then settles every remaining group."""
        trainer = self._watch("trainer_events", TrainingDone, self._on_trainer_event)
        while not trainer.seen():
            for rollout in self._read(timeout_s=self._patience_s):
                self._take(rollout)
                if trainer.seen():
                    break
            self._score()
        self._settle_rest(trained_steps=trainer.event.version)

    @property
    def _patience_s(self) -> float:
        return SCORES_POLL_S if self._reference and self._reference.is_busy else POLL_S

    def _read(self, timeout_s: float) -> Iterator[Rollout]:
        """Yields new rollouts. In a resumed run, the recorded rollouts of replayed groups come first."""
        before = self._ends.get("rollouts", 0)
        self._heartbeat.beat()
        for entry in self._rollouts.read(self._offset, timeout_s):
            self._heartbeat.beat()
            begin = self._offset
            self._offset = entry.next_offset
            if begin >= before or entry.record.group_id in self._replayed:
                self._open.group_began(entry.record.group_id, begin)
                yield entry.record

    def _watch(
        self, name: str, kind: type[Record], on_event: Callable[[Record], None] = lambda _: None
    ) -> "EventWatch":
        reader = self._streams.reader(name)
        return EventWatch(reader, self._ends.get(name, 0), kind, on_event, self._heartbeat.beat)

    def _on_trainer_event(self, event: Record) -> None:
        """Releases the rows and groups of closed steps, and records the trainer's version.

        The trainer may not have read the rows of other steps, whose groups must be settled if training ends.
        """
        if isinstance(event, StepClosed):
            self._made = event.version
            self._open.step_closed(event.version)
            self._rows.protect(self._open.first_row(event.version, self._rows.end))

    def _take(self, rollout: Rollout) -> None:
        if group := self._groups.collect(rollout):
            self._take_group(group)
            self._score()

    def _take_group(self, group: list[Rollout]) -> None:
        """Adds a complete group to the current step, or settles it as dropped."""
        group_id = group[0].group_id
        self._counts.sampled(group)
        outcome = self._formation.add_group(group)
        if outcome.dropped != DropReason.FAILED and self._equal.begins_with(outcome.dropped in UNDIFFERING):
            self._warn(Alarm.EQUAL_REWARDS)
        if outcome.dropped is not None:
            self._open.group_dropped(group_id)
            self._counts.drop(group, outcome.dropped)
            self._settle([group_id], outcome.dropped, outcome.why)
            self._count_dropped(outcome.why)
        else:
            self._dropped_in_a_row = 0
        for row in outcome.rows:
            self._take_row(row)

    def _take_row(self, row: MicroBatchRow) -> None:
        """Writes a row, or queues it for scoring if there is a reference."""
        self._counts.train(row)
        self._open.row_formed(row)
        row = msgspec.structs.replace(row, rollouts_offset=self._open.first_rollout(self._offset))
        if self._reference:
            self._unscored.append(row)
        else:
            self._append(row)

    def _condemn_reference(self, why: str) -> None:
        self._events.append(ReferenceCondemned(why=why))

    def _score(self) -> None:
        """Starts to score rows until the reference is full, and appends the scored rows."""
        while self._reference and self._may_score():
            row = self._unscored.popleft()
            self._reference.begin(row, self._reference_version_of(row))
        for scored in self._reference.finished() if self._reference else ():
            sequences = sum(map(len, scored.row.micro_batches))
            self._spans.add("score", scored.began, scored.seconds, step=scored.row.step, sequences=sequences)
            self._scored_s += scored.seconds
            if scored.row.reference_version is not None:
                self._reference_version = scored.row.reference_version
            self._append(scored.row)

    def _may_score(self) -> bool:
        """Returns True if the next row can be scored: the reference is not full, and the version exists.

        After a resumption, the reference may still have a newer version, which the run has undone.
        """
        if not self._unscored or self._reference.is_full:
            return False
        version = self._reference_version_of(self._unscored[0])
        return version is None or version <= self._made

    def _reference_version_of(self, row: MicroBatchRow) -> int | None:
        """Returns the weight version that must score the row; None if the reference is not renewed."""
        reference = self._config.reference
        return reference.version_at(row.step) if reference.renew_every else None

    def _append(self, row: MicroBatchRow) -> None:
        self._open.row_written(row.step, self._rows.end)
        self._rows.append(row)
        if row.closes_step:
            self._write_metrics()

    def _count_dropped(self, last: str) -> None:
        """Counts a dropped group. Raises GaveUpError after `give_up_after` in a row, without progress.

        last: details of the reason of this drop, or "".
        """
        self._dropped_in_a_row += 1
        if self._dropped_in_a_row >= self._config.give_up_after:
            dropped = ", ".join(f"{reason} {count}" for reason, count in self._counts.dropped.items())
            failures = ", ".join(f"{count} x {status}" for status, count in self._counts.failures.items())
            why = f"; rollouts that failed, of which logs/actor.log says why: {failures}" if failures else ""
            raise GaveUpError(
                f"gave up: {self._dropped_in_a_row} groups in a row were dropped (give_up_after), "
                f"in all {dropped}{f'; the last one: {last}' if last else ''}{why}"
            )

    def _settle(self, group_ids: list[int], reason: str, why: str = "") -> None:
        rollouts = len(group_ids) * self._config.group_size
        self._events.append(Settled(group_ids=group_ids, rollouts=rollouts, reason=reason, why=why))
        self._counts.dropped[reason] += len(group_ids)
        if time.monotonic() >= self._next_metrics:
            self._write_metrics()

    def _warn(self, alarm: Alarm) -> None:
        log.warning("step %d: %s: %s", self._formation.step, alarm, alarm.sentence)
        self._write_metrics(**{f"alarm_{alarm}": 1.0})

    def _write_metrics(self, **alarms: float) -> None:
        masked = {f"masked_{reason}": count for reason, count in self._formation.masked.items()}
        self._metrics.write(
            self._formation.step, **self._counts.metrics(), **masked, **self._reference_metrics(), **alarms
        )
        self._next_metrics = time.monotonic() + METRICS_EVERY_S

    def _reference_metrics(self) -> dict[str, float]:
        if not self._reference:
            return {}
        return {"reference_s": self._scored_s, "reference_version": self._reference_version}

    def _settle_rest(self, trained_steps: int) -> None:
        """Settles the groups of untrained rows, of the open step, and of unread rollouts.

        The actor settles its unfinished groups.
        """
        self._watch("actor_events", ActorStopped).wait()
        left = [*self._open.groups_from(trained_steps), *self._formation.open_groups]
        for rollout in self._read(timeout_s=0):
            if self._groups.collect(rollout):
                left.append(rollout.group_id)
        if left:
            self._settle(left, DropReason.TRAINING_DONE)
        self._write_metrics()


class EventWatch:
    """Reads an event stream until a record of `kind`, and passes earlier records to `on_event`."""

    def __init__(
        self,
        reader: StreamReader,
        from_offset: int,
        kind: type[Record],
        on_event: Callable[[Record], None],
        beat: Callable[[], None],
    ):
        self._beat = beat
        self._reader = reader
        self._offset = from_offset
        self._kind = kind
        self._on_event = on_event
        self._next_poll = 0.0
        self.event: Record | None = None

    def seen(self) -> bool:
        """Returns True if the record has been read. Polls the stream at most every `POLL_S` seconds."""
        if self.event is None and time.monotonic() >= self._next_poll:
            self._poll(timeout_s=0)
            self._next_poll = time.monotonic() + POLL_S
        return self.event is not None

    def wait(self) -> None:
        while self.event is None:
            self._beat()
            self._poll(EVERY_S)

    def _poll(self, timeout_s: float) -> None:
        for entry in self._reader.read(self._offset, timeout_s):
            self._offset = entry.next_offset
            if isinstance(entry.record, self._kind):
                self.event = entry.record
                return
            self._on_event(entry.record)


if __name__ == "__main__":
    process_main("preprocessor", lambda config, run_dir, token: Preprocessor(config, run_dir, token).run())
