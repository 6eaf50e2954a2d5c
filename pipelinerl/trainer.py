"""The trainer: rows -> forward, objective, backward, step -> weights published in flight.

Run by the launcher, one process per rank: `python -m pipelinerl.trainer --run-dir DIR` with RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT and, on rank 0, the servers' URLs. Rank 0 alone reads `rows`,
writes `trainer_events` and publishes; the others wait for it at the control group.
"""

import os
import time
from collections import Counter
from pathlib import Path

import numpy as np

from contracts.records import (
    DropReason,
    MicroBatchRow,
    PublishWanted,
    Quiesced,
    Settled,
    StepClosed,
    TrainingDone,
    WeightsPublished,
    decode,
    encode,
)
from contracts.trainer import PackedBatch, SaveHandle, StepReport, WorkerSpec
from pipelinerl.checkpoint_saver import CheckpointSaver
from pipelinerl.checkpoints import Checkpoints, Position
from pipelinerl.components import build, build_domain, open_streams
from pipelinerl.config import RunConfig
from pipelinerl.events import life_begun
from pipelinerl.metrics import MetricsWriter
from pipelinerl.probe import Probe
from pipelinerl.process import SERVERS_VARIABLE, process_main
from pipelinerl.ranks import Ranks
from pipelinerl.step_statistics import StepStatistics
from pipelinerl.streams import Streams
from pipelinerl.weight_publisher import WeightPublisher, publish

QUIESCE_GRACE_S = 10.0


class Trainer:
    def __init__(self, config: RunConfig, run_dir: Path, token: str | None):
        self._config, self._run_dir = config, run_dir
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._worker = build(config.trainer)
        self._worker.init_worker(_worker_spec(config, rank, size))
        self._ranks = Ranks(rank, size, config.world.rank_timeout_s)
        self._objective = build(config.objective)
        self._probe = Probe(config, build_domain(config), self._ranks, token)
        streams = open_streams(config, run_dir)
        resumed = life_begun(streams)
        self._checkpoints = Checkpoints(run_dir)
        if resumed.version > 0:
            self._worker.load(self._checkpoints.worker(resumed.version))
        self._version = resumed.version
        self._statistics = StepStatistics()
        manifest = self._worker.weight_manifest(config.weights.dtype)
        self._desk = None
        if rank == 0:
            urls = os.environ[SERVERS_VARIABLE].split(",")
            publisher = WeightPublisher(config, urls, token, manifest)
            self._desk = Desk(config, run_dir, streams, resumed.ends, publisher)

    def run(self) -> None:
        if self._desk:
            self._desk.publisher.wait_for_servers()
        self._publish()
        while self._version < self._config.max_steps:
            row = self._next_row()
            self._accumulate(row)
            if row.closes_step:
                self._close_step()
        if self._desk:
            self._desk.end(self._version)
        self._worker.export(self._checkpoints.final)
        self._worker.close()

    def _next_row(self) -> MicroBatchRow:
        """Ranks wait for data here, together."""
        return decode(self._ranks.share(encode(self._desk.next_row()) if self._desk else None))

    def _accumulate(self, row: MicroBatchRow) -> None:
        batch = PackedBatch.pack(row.micro_batches[self._ranks.rank], row.rollouts).to(self._worker.device)
        scores = self._worker.forward(batch, entropy=True)
        loss, sums = self._objective(scores, batch)
        self._worker.backward(loss)
        self._statistics.add(scores, batch, row.step, loss, sums)

    def _close_step(self) -> None:
        report = self._worker.step()
        self._version += 1
        statistics = self._statistics.report(self._ranks)
        self._statistics = StepStatistics()
        if self._desk:
            self._desk.close_step(self._version, report, statistics)
            if self._config.schedule == "async":
                self._desk.wait_for_quiet(self._version)
        self._publish()
        if self._desk:
            self._desk.settle(self._version, report.skipped)
        every = self._config.checkpoint.every
        if every and (self._version % every == 0 or self._version == self._config.max_steps):
            self._save()

    def _save(self) -> None:
        """The backend writes on while training does."""
        if self._desk:
            self._desk.saver.finish()
        saving = self._worker.save(self._checkpoints.worker(self._version))
        if self._desk:
            self._desk.save(self._version, saving)

    def _publish(self) -> None:
        publisher = self._desk.publisher if self._desk else None
        published = publish(self._worker, self._ranks, publisher, self._version)
        if self._desk:
            self._desk.published(published)
        if self._probe.due(self._version):
            servers = published.servers if published else []
            gap = self._probe.measure(self._worker, self._version, servers)
            if self._desk:
                self._desk.metrics.write(self._version, **gap)


class Desk:
    """What rank 0 alone does: reads rows, writes events and metrics, owns the publisher."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        streams: Streams,
        ends: dict[str, int],
        publisher: WeightPublisher,
    ):
        """`ends`: of the streams, when this life of the run began."""
        self._config, self.publisher = config, publisher
        self._rows = streams.reader("rows").read(ends.get("rows", 0))
        self._actor_events = streams.reader("actor_events")
        self._actor_offset = ends.get("actor_events", 0)
        self._events = streams.writer("trainer_events")
        self.saver = CheckpointSaver(Checkpoints(run_dir), config.checkpoint.keep, self._events.append)
        self._rollouts_offset = 0  # of the last row
        self.metrics = MetricsWriter(run_dir, "trainer", config.tensorboard)
        self._lags: Counter[int] = Counter()  # lag -> tokens of the step
        self._masked_tokens = 0
        self._groups: list[int] = []
        self._step_began = time.monotonic()

    def end(self, version: int) -> None:
        self.saver.finish()
        self._events.append(TrainingDone(version=version))
        self.publisher.close()

    def save(self, version: int, saving: SaveHandle) -> None:
        self.saver.begin(Position(version, self._rollouts_offset), saving)

    def next_row(self) -> MicroBatchRow:
        row = next(self._rows).record
        versions = [s.versions[s.loss_mask] for sequences in row.micro_batches for s in sequences]
        if versions:
            lags, tokens = np.unique(row.step - np.concatenate(versions), return_counts=True)
            self._lags.update(dict(zip(lags.tolist(), tokens.tolist(), strict=True)))
        self._masked_tokens += row.masked_tokens
        self._groups, self._rollouts_offset = row.group_ids, row.rollouts_offset
        return row

    def close_step(self, version: int, report: StepReport, statistics: dict[str, float]) -> None:
        self.saver.look()
        tokens = int(statistics["trained_tokens"])
        self._events.append(
            StepClosed(
                version=version,
                rollouts=self._config.batch_size,
                tokens=tokens,
                lag_histogram=dict(self._lags),
                skipped=report.skipped,
            )
        )
        now = time.monotonic()
        self.metrics.write(
            version,
            grad_norm=report.grad_norm,
            learning_rate=report.learning_rate,
            lag_mean=sum(lag * count for lag, count in self._lags.items()) / max(tokens, 1),
            lag_max=max(self._lags, default=0),
            masked_tokens=self._masked_tokens,
            trained_tokens_per_s=tokens / (now - self._step_began),
            **statistics,
        )
        self._lags.clear()
        self._masked_tokens = 0
        self._step_began = now

    def wait_for_quiet(self, version: int) -> None:
        """`schedule: async`: until the actor has no request open."""
        self._events.append(PublishWanted(version=version))
        limit_s = self._config.rollout.timeout_s + QUIESCE_GRACE_S  # no request may take longer
        for entry in self._actor_events.read(self._actor_offset, limit_s):
            self._actor_offset = entry.next_offset
            if entry.record == Quiesced(version=version):
                return
        raise TimeoutError(f"the actor did not quiesce for version {version} within rollout.timeout_s")

    def published(self, published: WeightsPublished) -> None:
        self._events.append(published)
        self.metrics.write(
            published.version,
            weight_version=published.version,
            publish_seconds=published.seconds,
            publish_paused_s=published.paused_s,
            publish_bytes=published.bytes,
            servers=len(published.servers),
        )

    def settle(self, version: int, skipped: bool) -> None:
        """The step's groups, once the version that they made is live."""
        reason = DropReason.NONFINITE if skipped else None
        rollouts = len(self._groups) * self._config.group_size
        self._events.append(
            Settled(group_ids=self._groups, rollouts=rollouts, reason=reason, version=version)
        )


def _worker_spec(config: RunConfig, rank: int, size: int) -> WorkerSpec:
    return WorkerSpec(
        model_path=config.model.path,
        optimizer=config.optimizer,
        rank=rank,
        world_size=size,
        master_address=os.environ["MASTER_ADDR"],
        master_port=int(os.environ["MASTER_PORT"]),
        device=config.device,
        seed=config.seed,
        timeout_s=config.world.rank_timeout_s,
    )


if __name__ == "__main__":
    process_main("trainer", lambda config, run_dir, token: Trainer(config, run_dir, token).run())
