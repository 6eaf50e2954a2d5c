"""DiLoCoTrainer: a trainer that periodically merges its updates with those of other runs (islands).

An island is a complete run, and its inner trainer makes the updates. After `every` updates, the islands sum
their drifts from the shared anchor, and continue from the new anchor. The pipeline is not involved.
Source: DiLoCo, Douillard et al. 2023; INTELLECT-1, Prime Intellect 2024.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch

from contracts.model_shape import ModelShape
from contracts.support.addresses import LOOPBACK
from contracts.trainer import (
    LowRank,
    PackedBatch,
    SaveHandle,
    StepReport,
    TokenScores,
    TrainerWorker,
    WorkerSpec,
)
from contracts.weights import WeightManifest
from extensions.islands.flat import Flat
from extensions.islands.island import InnerTrainer, Island, Others
from extensions.islands.kept_rounds import KeptRounds
from extensions.islands.lighthouse import MISSING, LighthouseMembership
from extensions.islands.membership import Alone
from extensions.islands.options import IslandOptions
from extensions.islands.ranks import IslandRanks, new_group
from extensions.islands.rounds import NoRounds, RoundStore
from extensions.islands.saves import OuterSaves, Saved, read

log = logging.getLogger(__name__)

INNER = "inner"  # directory of the inner trainer's checkpoint


class DiLoCoTrainer(TrainerWorker):
    """A trainer around another one, which must give access to its shards. Its options:

    inner: the trainer that makes the updates.
    every: updates between rounds, including skipped ones. None = no rounds, only the inner trainer.
    outer_lr, outer_momentum: the outer SGD with Nesterov momentum. 1 and 0 average the islands' models,
        weighted by their updates. INTELLECT-1 pre-trained with 0.7 and 0.9.
    quantise: code of drifts: `blocks` sends one byte per element, `none` sends four.
    lighthouse: URL of the process that knows all islands. None = this island makes every round alone.
    island: unique name of this island.
    address: address of this machine for the other islands.
    wait_s: longest wait of a round for the other islands, such as for an island that is out of phase.
    timeout_s: longest time to find the others, to fetch missed rounds, and for an exchange, each. The first
        message of the others may take twice as long, because they may be fetching rounds.
    attempts: tries of a round before training continues alone.
    max_behind: missed rounds after which an island's drift is dropped.
    keep: number of gradients that are kept for islands that missed rounds.
    directory: directory of the kept gradients and the two newest states.
    """

    def __init__(
        self,
        *,
        inner: TrainerWorker,
        every: int | None = 100,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        quantise: str = "blocks",
        lighthouse: str | None = None,
        island: str = "island-0",
        address: str = LOOPBACK,
        wait_s: float = 120.0,
        timeout_s: float = 120.0,
        attempts: int = 3,
        max_behind: int = 4,
        keep: int = 8,
        directory: str = "/dev/shm/pipelinerl-islands",
    ):
        if not isinstance(inner, TrainerWorker) or isinstance(inner, DiLoCoTrainer):
            raise ValueError(f"inner must be a trainer that is no DiLoCoTrainer itself, not {inner!r}")
        self._inner = inner
        self._options = IslandOptions(
            every=every,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            quantise=quantise,
            lighthouse=lighthouse,
            island=island,
            address=address,
            wait_s=wait_s,
            timeout_s=timeout_s,
            attempts=attempts,
            max_behind=max_behind,
            keep=keep,
            directory=directory,
        )
        self._island: Island | None = None  # None while there are no rounds
        self._others: Others | None = None  # None before the first step
        self._since = 0  # updates since the last round or attempt

    # --- rounds -------------------------------------------------------------------------------

    @property
    def period(self) -> int | None:
        return self._options.every

    @property
    def longest_wait_s(self) -> float:
        return self._options.longest_wait_s

    def init_worker(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._inner.init_worker(spec)
        if self._options.every is None:
            return
        if self._inner.shards() is None:
            raise ValueError(
                f"{type(self._inner).__name__} gives no access to its shards, which islands exchange: "
                "set trainer.inner to another trainer, or trainer.every to null"
            )
        if spec.world_size > 1 and self._options.longest_silence_s >= spec.timeout_s:
            raise ValueError(
                f"wait_s and twice timeout_s must be below {spec.timeout_s:g} s, for which the ranks of an "
                "island wait for one another (world.rank_timeout_s)"
            )
        self._ranks = IslandRanks(spec)
        self._saves = OuterSaves(spec.rank, new_group(spec) if spec.world_size > 1 else None)
        self._island = self._new_island()

    def _new_island(self) -> Island:
        """Returns an island whose anchor is the current weights."""
        inner = InnerTrainer(
            shards=lambda: Flat(self._inner.shards()),
            adopt=self._inner.adopt,
            total=self._ranks.total,
            layout=[self._spec.rank, self._spec.world_size],
        )
        return Island(self._options, inner)

    def join(self, ranks: IslandRanks) -> Others:
        """Returns the other islands of this rank. A collective, called once, at the first step."""
        options = self._options
        if options.lighthouse is None or self._spec.alone:
            return Others(Alone(), NoRounds())
        rounds = self._kept_rounds(ranks.rank)
        membership = LighthouseMembership(
            ranks,
            options.lighthouse,
            options.island,
            options.address,
            rounds.url,
            options.wait_s,
            options.timeout_s,
        )
        return Others(membership, rounds)

    def _kept_rounds(self, rank: int) -> RoundStore:
        """Returns the rank's store of rounds, or NoRounds if the directory cannot be used."""
        options = self._options
        directory = Path(options.directory) / f"{options.island}-{rank}"
        try:
            rounds = KeptRounds(directory, options.keep, options.address)
        except OSError as error:
            log.warning("no rounds are kept, and missed ones cannot be had: %s", error)
            return NoRounds()
        rounds.begin(self._island.outer.snapshot())
        return rounds

    def step(self) -> StepReport:
        report = self._inner.step()
        if self._island is None:
            return report
        self._others = self._others or self.join(self._ranks)
        self._island.drift.updates += not report.skipped
        self._since += 1
        if self._since < self._options.period:
            return report
        self._since = 0
        self._wait_written()
        return replace(report, measures={**report.measures, **self._island.synchronise(self._others)})

    def _wait_written(self) -> None:
        """Waits until the state is written, before a round or a load changes it."""
        self._saves.wait_ended()
        if self._others:
            self._others.rounds.wait_ended()

    # --- checkpoints --------------------------------------------------------------------------

    def save(self, directory: Path) -> SaveHandle:
        """Saves the inner trainer's checkpoint in a subdirectory, and a file per rank next to it."""
        inner = self._inner.save(directory / INNER)
        if self._island is None:
            return inner
        numbers = {"ranks": self._spec.world_size, "since": self._since}
        tensors, more = self._island.state()
        return self._saves.save(inner, directory, (tensors, numbers | more))

    def load(self, directory: Path) -> None:
        saved = None
        if self._island is not None:
            self._wait_written()
            saved = self._read(directory)
        self._inner.load(directory / INNER)
        if self._island is None:
            return
        self._island = self._new_island()
        self._since = 0
        if saved is not None:
            self._island.restore(saved)
            self._since = saved[1]["since"]

    def _read(self, directory: Path) -> Saved | None:
        """Returns the state of this rank, or None if the checkpoint has that of other ranks, or none.

        Raises ValueError, on every rank, if the state of a rank is missing or does not fit.
        """
        try:
            saved = read(directory, self._spec.rank)
            of_ranks = saved is not None and saved[1]["ranks"] == self._spec.world_size
            fits = of_ranks and len(saved[0]["anchor"]) == len(self._island.outer.anchor)
        except Exception as error:  # of any kind, from a broken file; all ranks are informed
            log.warning("the outer state of rank %d cannot be read: %s", self._spec.rank, error)
            of_ranks = True
            fits = False
        fitting, unfit = self._ranks.total([float(fits), float(of_ranks and not fits)])
        if unfit or 0 < fitting < self._spec.world_size:
            raise ValueError(
                f"{directory} has the outer state of another model, a broken one, or not that of every rank"
            )
        if not fits:
            log.warning(
                "%s has no outer state of %d ranks: the loaded weights are the anchor of round 0",
                directory,
                self._spec.world_size,
            )
        return saved if fits else None

    def reset_optimizer(self) -> None:
        """Discards the inner optimizer's moments, but not the outer momentum, which all islands share."""
        self._inner.reset_optimizer()

    def close(self) -> None:
        if self._island is not None:
            self._saves.close()
        if self._others:
            self._others.membership.leave()
            self._others.rounds.close()
        self._inner.close()

    # --- delegated to the inner trainer -------------------------------------------------------

    @property
    def needs_model(self) -> bool:
        return self._inner.needs_model

    @property
    def missing(self) -> str | None:
        lacks = self._options.lighthouse is not None and find_spec("torchft") is None
        return MISSING if lacks else self._inner.missing

    @property
    def trains_low_rank(self) -> bool:
        return self._inner.trains_low_rank

    @property
    def device(self) -> torch.device:
        return self._inner.device

    def memory(self, shape: ModelShape, world_size: int, tokens: int) -> dict[str, int] | None:
        return self._inner.memory(shape, world_size, tokens)

    def unfit(self, model_path: str) -> str | None:
        return self._inner.unfit(model_path)

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        return self._inner.forward(batch, grad, entropy)

    def backward(self, loss: torch.Tensor) -> None:
        self._inner.backward(loss)

    def weight_manifest(self, dtype: str) -> WeightManifest:
        return self._inner.weight_manifest(dtype)

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        return self._inner.gather_weights()

    def buffers(self) -> Mapping[str, torch.Tensor]:
        return self._inner.buffers()

    def gather_low_rank(self) -> Iterator[tuple[str, LowRank | None]]:
        return self._inner.gather_low_rank()

    def shards(self) -> list[torch.Tensor] | None:
        return self._inner.shards()

    def adopt(self) -> None:
        self._inner.adopt()

    def export(self, directory: Path) -> None:
        self._inner.export(directory)
