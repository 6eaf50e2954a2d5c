"""What every check is given: the adapter under test, models to load, and ranks to run programs on."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.conformance.trainer.ranks import RankFailed, run_ranks
from contracts.conformance.verdicts import Broken
from contracts.support.ports import ReservedPort
from contracts.trainer import OptimizerSpec, WorkerSpec


@dataclass(frozen=True)
class Bench:
    adapter: str  # package.module.Class
    options: dict[str, object]  # of its constructor
    ranks: int
    device: str  # cpu, cuda
    patience_s: float  # the longest that one session may last
    directory: Path  # empty, and the kit's own
    models: tuple[str, ...]  # Hugging Face model directories
    _sessions: "itertools.count[int]" = field(default_factory=itertools.count)

    def session(
        self, program: Callable[..., object], model: str, optimizer: OptimizerSpec, *args: object, doing: str
    ) -> list[Any]:
        """`program(worker, spec, *args)` on every rank of a new trainer; what each returned, by rank.
        Raises Broken where a rank fails; `doing` tells its reader how to do the same."""
        folder = self.directory / f"session-{next(self._sessions)}"
        folder.mkdir()
        with ReservedPort() as port:
            specs = [self._spec(rank, model, optimizer, port.number) for rank in range(self.ranks)]
            try:
                return run_ranks(folder, self.adapter, self.options, specs, program, args, self.patience_s)
            except RankFailed as error:
                raise Broken(str(error), "every rank returns from every call", doing) from error

    def _spec(self, rank: int, model: str, optimizer: OptimizerSpec, port: int) -> WorkerSpec:
        return WorkerSpec(
            model_path=model,
            optimizer=optimizer,
            rank=rank,
            world_size=self.ranks,
            master_port=port,
            device=self.device,
            timeout_s=2 * self.patience_s,  # the kit loses patience first, and says where
        )
