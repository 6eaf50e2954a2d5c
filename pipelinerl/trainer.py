"""The trainer learns from rows, and publishes each new weight version to the servers.

Run by the launcher, one process per rank: `python -m pipelinerl.trainer --run-dir DIR` with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Only rank 0 reads `rows`, writes `trainer_events` and publishes. The
other ranks wait for it in the control group (`training.ranks`).
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import torch

from contracts.records import (
    MicroBatchRow,
    PublishWanted,
    Record,
    Resumed,
    SaveWanted,
    TrainingDone,
)
from contracts.trainer import SaveHandle, WorkerSpec
from contracts.weights import WeightManifest
from pipelinerl.components import build_domain, instantiate, needed_capabilities
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain
from pipelinerl.heartbeat import EVERY_S, Heartbeat
from pipelinerl.process import REFERENCE_VARIABLE, process_main
from pipelinerl.spans import Spans
from pipelinerl.streams import Streams
from pipelinerl.streams.events import latest_resumption
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.streams.of_run import open_streams
from pipelinerl.training.checkpoints import Checkpoints
from pipelinerl.training.disk_space import size_beside_weights
from pipelinerl.training.learner import Learner
from pipelinerl.training.meanwhile import meanwhile
from pipelinerl.training.probe import Probe
from pipelinerl.training.progress import Progress
from pipelinerl.training.publishing.base import PublisherContext, publish
from pipelinerl.training.rank_zero import RankZero
from pipelinerl.training.ranks import Ranks
from pipelinerl.training.reference_updates import ReferenceUpdates
from pipelinerl.training.turn_taking import SIDE_BY_SIDE, TurnContext
from pipelinerl.turns import turns_of
from pipelinerl.weight_transport import transport_of


class Trainer:
    def __init__(self, config: RunConfig, run_dir: Path, token: str | None):
        self._config = config
        rank = int(os.environ["RANK"])
        size = int(os.environ["WORLD_SIZE"])
        timeout_s = config.world.heartbeat_timeout_s
        self._heartbeat = Heartbeat(run_dir, f"trainer-{rank}", timeout_s)
        self._spans = Spans(run_dir, f"trainer-{rank}")
        self._worker = instantiate(config.trainer)
        streams = open_streams(config, run_dir, on_wait=self._heartbeat.beat)
        if config.shares_gpus:
            self._let_servers_first(streams)
        with self._waiting():
            self._worker.init_worker(_worker_spec(config, rank, size))
        self._ranks = Ranks(rank, size, config.world.rank_timeout_s, timeout_s, self._heartbeat.beat)
        self._learner = Learner(config, self._worker)
        domain = build_domain(config)
        self._transport = transport_of(config)
        self._schedule = turns_of(config)  # None if servers and trainer work side by side
        self._probe = Probe(config, domain, self._ranks, token, self._transport.pulled)
        resumed = latest_resumption(streams)
        self._checkpoints = Checkpoints(run_dir)
        if resumed.version > 0:
            with self._waiting():
                self._worker.load(self._checkpoints.worker(resumed.version))
        self._version = resumed.version
        self._progress = Progress(self._learner.objective, has_begun=resumed.version > 0)
        manifest = self._worker.weight_manifest(config.weights.dtype)
        self._rank_zero: RankZero | None = None  # on rank 0 alone
        if rank == 0:
            self._rank_zero = self._new_rank_zero(run_dir, streams, resumed, domain, token, manifest)
        # A call blocks every rank and returns rank 0's answer. All ranks must make it, in the same order.
        self._on_all_ranks = self._ranks.on_rank_0(self._rank_zero)
        self._turns = SIDE_BY_SIDE
        if self._schedule:
            context = TurnContext(
                self._worker, self._ranks, self._on_all_ranks, self._probe, self._spans, self._waiting
            )
            self._turns = self._schedule.of_trainer(context)

    def _let_servers_first(self, streams: Streams) -> None:
        """Waits until the servers have their memory, and checks what is left of this rank's GPU."""
        from pipelinerl.training.shared_gpu import check_free_memory, wait_for_servers

        launched = LaunchedServers(streams, self._heartbeat.beat)
        wait_for_servers(launched, self._config.world.server_start_timeout_s)
        shape = self._config.model.found_shape
        check_free_memory(self._config, self._worker, shape, torch.cuda.mem_get_info())

    def _new_rank_zero(
        self,
        run_dir: Path,
        streams: Streams,
        resumed: Resumed,
        domain: Domain,
        token: str | None,
        manifest: WeightManifest,
    ) -> RankZero:
        """Returns the RankZero with the publisher of the configured transport."""
        config = self._config
        beat = self._heartbeat.beat
        address = os.environ["MASTER_ADDR"]
        events = streams.writer("trainer_events")
        context = PublisherContext(
            run_dir=run_dir,
            launched=LaunchedServers(streams, beat),
            token=token,
            manifest=manifest,
            record=events.append,
            needs=self._needed_capabilities(domain),
            address=address,
            buffers=self._worker.buffers,
        )
        publisher = self._transport.publisher(context)
        reference = None
        if config.reference and config.reference.renew_every:
            url = os.environ[REFERENCE_VARIABLE]
            reference = ReferenceUpdates(config, url, token, manifest, self._checkpoints, address, beat)
        return RankZero(
            config,
            run_dir,
            streams,
            events,
            resumed,
            publisher,
            self._heartbeat,
            self._spans,
            reference,
            takes_turns=self._schedule is not None,
        )

    def _needed_capabilities(self, domain: Domain) -> dict[str, str]:
        needs = needed_capabilities(self._config, domain) | self._transport.needed_capabilities()
        return needs | (self._schedule.needed_capabilities() if self._schedule else {})

    def run(self) -> None:
        """Publishes the start version, then trains and publishes step by step until the run is complete.

        If the launcher asked for a restart, saves a checkpoint and returns early.
        """
        self._on_all_ranks.wait_for_servers()
        self._publish()
        self._renew_reference()
        if not (self._transport.pulled or self._turns.alternates):  # otherwise training never waits here
            self._end_probe()
        self._spans.taken()  # spans before training belong to no step
        while self._version < self._config.max_steps:
            match self._next_task():
                case PublishWanted():
                    self._publish()
                case SaveWanted():
                    return self._leave()
                case TrainingDone():
                    break
                case MicroBatchRow() as row:
                    self._learn(row)
        if self._config.checkpoint.every:
            self._save_unsaved()
        if self._on_all_ranks.is_save_wanted():
            return self._leave()
        if self._version == self._config.max_steps:  # not solved before
            self._progress.ended()
        while self._on_all_ranks.must_repeat():
            self._publish()
        self._end()

    def _end(self) -> None:
        """Ends the probe, exports the weights, and ends the run. With turns, servers are awake at last."""
        self._turns.train(self._version)
        self._end_probe()
        if self._turns.alternates:
            self._export()
            self._publish()
        self._probe.close()
        self._on_all_ranks.end(self._version)
        if not self._turns.alternates:
            self._export()
        self._worker.close()

    def _next_task(self) -> Record:
        """Waits for the next task. All ranks wait here together."""
        with self._spans("wait"):
            return self._ranks.scatter(self._tasks)

    def _tasks(self) -> list[Record]:
        """Waits for the next task. Returns each rank's share of it."""
        task = self._rank_zero.next_task(self._version)
        if not isinstance(task, MicroBatchRow):
            return [task] * self._ranks.size
        return [msgspec.structs.replace(task, micro_batches=[own]) for own in task.micro_batches]

    def _learn(self, row: MicroBatchRow) -> None:
        (sequences,) = row.micro_batches
        self._turns.train(self._version + 1)
        with self._spans("learn", step=row.step, tokens=sum(len(s.token_ids) for s in sequences)):
            self._learner.accumulate(sequences, row.step)
        if row.closes_step:
            self._close_step()

    def _close_step(self) -> None:
        self._end_probe()
        with self._spans("optimizer", step=self._version), self._waiting(self._worker.longest_wait_s):
            report, statistics = self._learner.close_step(self._version, self._ranks)
        self._version += 1
        publishes = self._on_all_ranks.record_step(self._version, report, statistics)
        every = self._config.checkpoint.every
        is_saved = bool(every) and self._version % every == 0
        saving = self._begin_save() if is_saved and self._turns.alternates else None
        if publishes:
            self._publish()
        self._renew_reference()
        self._on_all_ranks.settle(self._version, report.skipped)
        self._progress.closed(report)
        if is_saved:
            self._save(saving)

    def _leave(self) -> None:
        """Saves the version if it has no checkpoint, and closes everything for a restart."""
        self._save_unsaved()
        self._probe.close()
        self._on_all_ranks.leave()
        self._worker.close()

    def _export(self) -> None:
        size = self._worker.weight_manifest("float32").total_bytes
        size += size_beside_weights(self._config.model.path)
        self._on_all_ranks.wait_for_space(size)
        self._worker.export(self._checkpoints.final)

    def _save_unsaved(self) -> None:
        """Saves the version if it has no checkpoint."""
        if self._on_all_ranks.is_unsaved(self._version):
            self._turns.train(self._version)
            self._save()

    def _save(self, saving: SaveHandle | None = None) -> None:
        """Saves the version, unless `saving` has begun to. It is a checkpoint once rank 0 has recorded it."""
        saving = saving or self._begin_save()
        if self._rank_zero:
            self._rank_zero.save(self._version, saving)

    def _begin_save(self) -> SaveHandle:
        """Starts to save the version. The backend writes while training continues."""
        with self._spans("save", version=self._version):
            self._on_all_ranks.finish_saving()
            return self._worker.save(self._checkpoints.worker(self._version))

    def _publish(self) -> None:
        """Publishes the version, and starts a probe of the servers that serve it."""
        publisher = self._rank_zero.publisher if self._rank_zero else None
        with self._spans("publish", version=self._version):
            with self._waiting():
                published = publish(self._worker, self._ranks, publisher, self._version, self._turns)
            self._on_all_ranks.published(published)
        self._probe.begin(self._version, published)

    def _renew_reference(self) -> None:
        """Sends the weights to the reference server if this version is the new reference."""
        if not self._is_renewal_due():
            return
        with self._spans("renew", version=self._version), self._waiting():
            if self._on_all_ranks.begin_renewal(self._version):
                weights = self._worker.gather_weights()
                if self._rank_zero:
                    self._rank_zero.reference.keep(self._version, weights)
                for _ in weights:
                    pass
            self._on_all_ranks.renew_reference(self._version)

    def _is_renewal_due(self) -> bool:
        reference = self._config.reference
        is_renewed = reference is not None and reference.renew_every is not None
        is_over = self._version == self._config.max_steps
        return is_renewed and not is_over and reference.version_at(self._version) == self._version

    def _end_probe(self) -> None:
        """Ends a probe of the version. Must be called before the weights change."""
        if not self._probe.is_under_way:
            return
        with self._spans("probe", version=self._version), self._waiting():
            measured = self._probe.score(self._worker, self._version)
        if self._rank_zero:
            self._rank_zero.metrics.write(self._version, **measured)

    def _waiting(self, longest_s: float | None = None) -> AbstractContextManager[None]:
        """Beats while the block loads, or waits for servers or ranks, at most for `longest_s` seconds."""
        self._heartbeat.beat()
        beat = self._heartbeat.of_wait(self._config.world.rank_timeout_s if longest_s is None else longest_s)
        return meanwhile(EVERY_S, beat, "heartbeat")


def _worker_spec(config: RunConfig, rank: int, size: int) -> WorkerSpec:
    return WorkerSpec(
        model_path=config.model.path,
        optimizer=config.updates_of_optimizer,
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
