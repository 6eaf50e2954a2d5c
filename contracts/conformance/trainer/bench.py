"""The test bench of every trainer check: the adapter, models to load, and ranks that run programs."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.conformance.trainer.low_rank import LowRankReference
from contracts.conformance.trainer.rank_programs import factor_copies
from contracts.conformance.trainer.ranks import RankFailedError, run_ranks
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.verdicts import GuaranteeError
from contracts.support.ports import ReservedPort
from contracts.trainer import OptimizerSpec, WorkerSpec


@dataclass(frozen=True)
class Bench:
    """The adapter under test, which runs programs on all its ranks."""

    adapter: str  # package.module.Class
    options: dict[str, object]  # arguments of its constructor
    ranks: int
    device: str  # cpu or cuda
    patience_s: float  # the longest time that one session may take
    directory: Path  # an empty directory for the kit's files
    models: tuple[str, ...]  # Hugging Face model directories
    trains_low_rank: bool = False  # declared by the adapter
    _sessions: "itertools.count[int]" = field(default_factory=itertools.count)

    def session(
        self,
        program: Callable[..., object],
        model: str,
        optimizer: OptimizerSpec,
        *args: object,
        doing: str,
        may_refuse: bool = False,
        seed: int = 0,
    ) -> list[Any]:
        """Runs `program(worker, spec, *args)` on every rank of a new trainer. Returns the results by rank.

        With `may_refuse`, the result of a rank whose `init_worker` raises ValueError is a Refusal.

        Raises GuaranteeError if a rank fails; `doing` describes how to reproduce it.
        """
        folder = self.new_directory()
        with ReservedPort() as port:
            specs = [self._spec(rank, model, optimizer, port.number, seed) for rank in range(self.ranks)]
            try:
                return run_ranks(
                    folder, self.adapter, self.options, specs, program, args, self.patience_s, may_refuse
                )
            except RankFailedError as error:
                raise GuaranteeError(str(error), "every rank returns from every call", doing) from error

    def reference(self, model: str) -> Reference:
        """Returns the reference of the adapter. A new trainer gathers its factors, if it trains any."""
        if not self.trains_low_rank:
            return Reference(model)
        doing = "list(worker.gather_low_rank())"
        results = self.session(factor_copies, model, OptimizerSpec(lr=1e-3), doing=doing)
        return LowRankReference(model, results[0])

    def new_directory(self) -> Path:
        """Makes an empty directory, and returns its path."""
        folder = self.directory / f"session-{next(self._sessions)}"
        folder.mkdir()
        return folder

    def _spec(self, rank: int, model: str, optimizer: OptimizerSpec, port: int, seed: int) -> WorkerSpec:
        return WorkerSpec(
            model_path=model,
            optimizer=optimizer,
            rank=rank,
            world_size=self.ranks,
            master_port=port,
            device=self.device,
            seed=seed,
            timeout_s=2 * self.patience_s,  # so that the kit times out first, and reports where
        )
