"""DiLoCoTrainer: a trainer that periodically merges its progress with that of other islands.

An island is a complete run, whose inner trainer makes the updates. The rest of the pipeline does not know
about islands. Sources: DiLoCo, Douillard et al. 2023; INTELLECT-1, Prime Intellect 2024.
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

INNER = "inner"  # subdirectory with the inner trainer's checkpoint


class DiLoCoTrainer(TrainerWorker):
    """A trainer around another one, which must support `shards`. Its options:

    inner: the trainer that makes the updates.
    every: number of updates between rounds, including skipped updates. If None, there are no rounds, and this
        trainer acts like the inner one.
    outer_lr, outer_momentum: options of the outer SGD with Nesterov momentum. 1 and 0 average the islands'
        models, weighted by their updates. INTELLECT-1 pre-trained with 0.7 and 0.9.
    quantise: encoding of drifts: `blocks` sends about one byte per element, `none` sends four.
    lighthouse: URL of the process that coordinates all islands. If None, this island makes every round alone.
    island: unique name of this island.
    address: address of this machine at which the other islands reach it.
    wait_s: how long a round waits for the other islands, in seconds.
    timeout_s: timeout of each of these, in seconds: finding the others, fetching missed rounds, exchanging.
        The wait for the others' first messages takes up to twice as long, because they may be fetching.
    attempts: attempts at a round before training continues alone.
    max_behind: missed rounds up to which an island's drift is still merged. Beyond that, it is dropped.
    keep: number of gradients kept for islands that missed rounds.
    directory: where these are kept, together with the two newest states.
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
        self._since = 0  # updates since the last call of `synchronise`

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
        inner = InnerTrainer(
            shards=lambda: Flat(self._inner.shards()),
            adopt=self._inner.adopt,
            total=self._ranks.total,
            layout=[self._spec.rank, self._spec.world_size],
        )
        return Island(self._options, inner)

    def join(self, ranks: IslandRanks) -> Others:
        """Connects this rank to the other islands. A collective over the ranks, called at the first step."""
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
        """Returns the rank's store of rounds, or NoRounds if its directory or address cannot be used."""
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
        """Waits until the tensors that the next round changes have been written."""
        self._saves.wait_ended()
        if self._others:
            self._others.rounds.wait_ended()

    # --- checkpoints --------------------------------------------------------------------------

    def save(self, directory: Path) -> SaveHandle:
        """Saves the inner trainer's checkpoint in a subdirectory, and one file for each rank beside it."""
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
        """Returns this rank's state, or None if the checkpoint has no outer state of as many ranks.

        Raises ValueError, on every rank, if the state of a rank is missing, broken or of another model.
        """
        try:
            saved = read(directory, self._spec.rank)
            of_ranks = saved is not None and saved[1]["ranks"] == self._spec.world_size
            fits = of_ranks and len(saved[0]["anchor"]) == len(self._island.outer.anchor)
        except Exception as error:  # the file may be broken in any way; `total` below reports it to all ranks
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
        """Resets the inner optimizer. The outer momentum stays, because it must equal the other islands'."""
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
