"""The part of the trainer that runs only on rank 0: rows, events, metrics, publications and checkpoints."""

import logging
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from contracts.records import (
    DropReason,
    Evaluated,
    MicroBatchRow,
    PhaseBegan,
    Pinned,
    PublishWanted,
    Quiesced,
    Record,
    Released,
    Resumed,
    SaveWanted,
    Settled,
    StepClosed,
    TrainingDone,
    WeightsPublished,
)
from contracts.trainer import SaveHandle, StepReport
from pipelinerl.components import instantiate
from pipelinerl.config import RunConfig
from pipelinerl.health import Health
from pipelinerl.heartbeat import EVERY_S, Heartbeat
from pipelinerl.metrics import MetricsWriter
from pipelinerl.spans import Spans
from pipelinerl.streams import Streams, StreamWriter
from pipelinerl.streams.base import Entry
from pipelinerl.streams.events import NEEDED_TO_RESUME, valid_results
from pipelinerl.training.checkpoint_saver import CheckpointSaver
from pipelinerl.training.checkpoints import Checkpoints, Position
from pipelinerl.training.disk_space import wait_for_space
from pipelinerl.training.meanwhile import meanwhile
from pipelinerl.training.phases import add_phases
from pipelinerl.training.publishing.base import WeightPublisher
from pipelinerl.training.reference_updates import ReferenceUpdates
from pipelinerl.training.save_requests import SaveRequests
from pipelinerl.training.step_statistics import TIMED
from pipelinerl.training.stopping import Stopping

log = logging.getLogger(__name__)
POLL_S = 1.0  # between two checks of the servers while no row arrives


class RankZero:
    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        streams: Streams,
        events: StreamWriter,
        resumed: Resumed,
        publisher: WeightPublisher,
        heartbeat: Heartbeat,
        spans: Spans,
        reference: ReferenceUpdates | None = None,
        takes_turns: bool = False,
    ):
        """events: writer of `trainer_events`. resumed: record from which this process starts.

        reference: updates of the reference server, or None if it is never renewed.
        takes_turns: whether servers sleep during a step, so that it begins when all its rows are there.
        """
        ends = resumed.ends
        self._config = config
        self._run_dir = run_dir
        self._heartbeat = heartbeat
        self._spans = spans
        self._save_requests = SaveRequests(streams)
        self.publisher = publisher
        self.reference = reference
        self._reader = streams.reader("rows")
        self._offset = ends.get("rows", 0)  # offset of the next row
        self._rows = self._reader.read(self._offset, POLL_S)
        self._takes_turns = takes_turns
        self._step_rows: deque[MicroBatchRow] = deque()  # with turns, of the step that is next
        self._is_within_step = False  # True if some of a step's rows were trained
        self._actor_events = streams.reader("actor_events")
        self._actor_offset = ends.get("actor_events", 0)
        self._events = events
        self.saver = CheckpointSaver(
            Checkpoints(run_dir),
            config.checkpoint.keep,
            self._events.append,
            sync_streams=lambda: streams.sync(NEEDED_TO_RESUME),
            newest=resumed.version,
            wait_for=heartbeat.wait_for,
        )
        self._rollouts_offset = 0  # the last row's offset in `rollouts`
        self.metrics = MetricsWriter(run_dir, "trainer")
        self._lags: Counter[int] = Counter()  # lag -> tokens of the step
        self._masked_tokens = 0
        self._group_ids: list[int] = []
        self._published = -1  # version of the last publication
        self._health = Health(instantiate(config.health))
        self._stopping = Stopping(config.stop_at, valid_results(streams))

    def end(self, version: int) -> None:
        self.saver.finish()
        self._events.append(self._done(version))
        self._close()

    def _close(self) -> None:
        self.publisher.close()
        if self.reference:
            self.reference.close()

    def _done(self, version: int) -> TrainingDone:
        solved = self._stopping.solved
        return TrainingDone(version=version, solved=solved and solved.version)

    def wait_for_servers(self) -> None:
        self.publisher.wait_for_servers()

    def must_repeat(self) -> bool:
        """Returns True if the newest version must be published again, after training."""
        return self.publisher.must_repeat()

    def finish_saving(self) -> None:
        self.saver.finish()

    def is_unsaved(self, version: int) -> bool:
        """Waits until no checkpoint is being written. Returns True if `version` has no checkpoint."""
        self.saver.finish()
        return self.saver.newest < version

    def leave(self) -> None:
        """Ends like `end`, but without `TrainingDone`, because training continues in another process."""
        self.saver.finish()
        self._close()

    def save(self, version: int, saving: SaveHandle) -> None:
        self.saver.begin(Position(version, self._rollouts_offset), saving)

    def next_task(self, version: int) -> MicroBatchRow | PublishWanted | SaveWanted | TrainingDone:
        """Waits for the next task of all ranks: a row, a request to save, or to publish `version` again.

        The last one is PublishWanted, which here is in no stream.
        Returns `TrainingDone` if the run is solved. Its evaluation may arrive after the last step, because no
        step closes once every problem is solved.
        """
        while not self.is_save_wanted():
            self._heartbeat.beat()
            self._tend_reference(version)
            if self._stopping.solved and not (self._takes_turns and self._is_within_step):
                return self._done(version)
            if self._step_rows and self._step_rows[-1].closes_step:
                return self._counted(self._step_rows.popleft())
            if (entry := next(self._rows, None)) is not None:
                row = self._taken(entry)
                if not self._takes_turns:
                    return self._counted(row)
                self._step_rows.append(row)
                continue
            self._rows = self._reader.read(self._offset, POLL_S)
            self._apply_new_actor_events()
            if self.publisher.is_stranded():
                log.warning("version %d is published again: it was not written, or servers changed", version)
                return PublishWanted(version=version)
        return SaveWanted()

    def _taken(self, entry: Entry) -> MicroBatchRow:
        self._offset = entry.next_offset
        self.publisher.rollouts_come()
        return entry.record

    def _counted(self, row: MicroBatchRow) -> MicroBatchRow:
        in_loss = [s.versions[s.loss_mask] for sequences in row.micro_batches for s in sequences]
        versions = [of_tokens[of_tokens >= 0] for of_tokens in in_loss]  # below 0: not sampled
        if versions:
            lags, tokens = np.unique(row.step - np.concatenate(versions), return_counts=True)
            self._lags.update(dict(zip(lags.tolist(), tokens.tolist(), strict=True)))
        self._masked_tokens += row.masked_tokens
        self._group_ids = row.group_ids
        self._rollouts_offset = row.rollouts_offset
        self._is_within_step = not row.closes_step
        return row

    def record_step(self, version: int, report: StepReport, statistics: dict[str, float]) -> bool:
        """Records the step that made `version`. Returns True if it is to be published now.

        If a save is requested, the restarted trainer publishes it.
        """
        self.saver.poll()
        self._write_step(version, report, statistics)
        self._apply_actor_events(version)
        return not self.is_save_wanted()

    def is_save_wanted(self) -> bool:
        """Returns True if the launcher has requested a save, because it will restart the trainer."""
        return self._save_requests.is_wanted()

    def wait_for_space(self, size: int) -> None:
        wait_for_space(self._run_dir, size, self._heartbeat.beat)

    # --- the reference, if it is renewed ------------------------------------------------------

    def begin_renewal(self, version: int) -> bool:
        """Returns True if the weights of `version` must be kept for the reference.

        First waits until no checkpoint is being written, and until the disk has space for the weights.
        """
        if self.reference.is_kept(version):
            return False
        self.saver.finish()
        self.wait_for_space(self.reference.total_bytes)
        return True

    def renew_reference(self, version: int) -> None:
        """Sends the weights of `version` to the reference server, in `next_task` if it is not ready now."""
        self.reference.check_soon()
        self._tend_reference(version)

    def _tend_reference(self, version: int) -> None:
        if self.reference:
            beat = self._heartbeat.of_wait(self._config.world.rank_timeout_s)
            with meanwhile(EVERY_S, beat, "heartbeat"):
                self.reference.tend(self._config.reference.version_at(version))

    # --- turns --------------------------------------------------------------------------------

    def put_to_sleep(self, version: int, timeout_s: float) -> None:
        """Puts all servers to sleep, and begins the phase that trains towards `version`."""
        self.publisher.put_to_sleep(timeout_s)
        self.begin_phase("train", version)

    def begin_phase(self, phase: Literal["train", "generate"], version: int) -> None:
        self._events.append(PhaseBegan(phase=phase, version=version))

    # --- steps --------------------------------------------------------------------------------

    def _write_step(self, version: int, report: StepReport, statistics: dict[str, float]) -> None:
        """Writes the step's event, metrics and alarms."""
        in_loss = int(statistics["trained_tokens"])
        tokens = 0 if report.skipped else in_loss  # a skipped step has trained on no token
        statistics = statistics | {"trained_tokens": float(tokens)}
        self._events.append(
            StepClosed(
                version=version,
                rollouts=0 if report.skipped else self._config.batch_size,
                tokens=tokens,
                lag_histogram=dict(self._lags),
                skipped=report.skipped,
            )
        )
        of_report = {name: float(getattr(report, name)) for name in ("grad_norm", "learning_rate", "skipped")}
        has_none = {"without_gradient": float(report.grad_norm == 0)}
        alarms = self._health.observe(of_report | has_none | statistics)
        for alarm in alarms:
            log.warning("step %d: %s: %s", version, alarm, alarm.sentence)
        step_s, seconds = self._spans.taken()
        self.metrics.write(
            version,
            **of_report,
            lag_mean=sum(lag * count for lag, count in self._lags.items()) / max(in_loss, 1),
            lag_max=max(self._lags, default=0),
            masked_tokens=self._masked_tokens,
            trained_tokens_per_s=tokens / step_s,
            step_s=step_s,
            **{f"{name}_s": seconds.get(name, 0.0) for name in TIMED},
            **statistics | report.measures,
            **{f"alarm_{alarm}": 1.0 for alarm in alarms},
        )
        self._lags.clear()
        self._masked_tokens = 0

    def _apply_actor_events(self, version: int) -> None:
        """Applies pins, releases and evaluations from the actor's events, before `version` is published.

        With `schedule: async`, it first waits until no request is in flight or a save is wanted.
        """
        if self._config.schedule == "async":
            self.wait_until_quiesced(version)
        else:
            self._apply_new_actor_events()

    def _apply_new_actor_events(self) -> None:
        for _ in self._applied_actor_events(wait_s=0):
            pass

    def wait_until_quiesced(self, version: int) -> None:
        """Waits until no request is in flight, or a save is wanted. With turns, some may wait in servers.

        The wait needs no limit, because requests have limits, and the launcher ends an actor that hangs.
        """
        self._events.append(PublishWanted(version=version))
        with self._spans("quiesce", version=version):
            while not self._is_quiesced(version) and not self.is_save_wanted():
                self._heartbeat.beat()

    def _is_quiesced(self, version: int) -> bool:
        """Waits at most `POLL_S` for the actor's report that no request is in flight."""
        return any(record == Quiesced(version=version) for record in self._applied_actor_events(POLL_S))

    def _applied_actor_events(self, wait_s: float) -> Iterator[Record]:
        """Yields the new events of the actor, each once it is applied."""
        for entry in self._actor_events.read(self._actor_offset, wait_s):
            self._actor_offset = entry.next_offset
            match entry.record:
                case Pinned(server=url):
                    self.publisher.pin(url)
                case Released(server=url):
                    self.publisher.release(url)
                case Evaluated():
                    self._stopping.observe(entry.record)
            yield entry.record

    def published(self, published: WeightsPublished) -> None:
        """Records a publication: its event, and its metrics if the version was not published before."""
        self._events.append(published)
        if published.version == self._published:  # published again, to servers that joined later
            return
        self._published = published.version
        add_phases(self._spans, published)
        self.metrics.write(
            published.version,
            weight_version=published.version,
            publish_seconds=published.seconds,
            publish_paused_s=published.paused_s,
            publish_bytes=published.bytes,
            servers=len(published.servers),
            **{f"publish_{name}_s": seconds for name, seconds in published.phases.items()},
            **self.publisher.figures,
        )

    def settle(self, version: int, skipped: bool) -> None:
        """Settles the step's groups.

        If a save is wanted, `version` was not published, and the actor ignores the record.
        """
        reason = DropReason.NONFINITE if skipped else None
        rollouts = len(self._group_ids) * self._config.group_size
        self._events.append(
            Settled(group_ids=self._group_ids, rollouts=rollouts, reason=reason, version=version)
        )
