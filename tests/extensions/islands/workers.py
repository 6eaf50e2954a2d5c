"""A tiny trainer that gives its shards. Its gradients are drawn, so that it needs no batch and no group."""

from collections.abc import Iterator
from pathlib import Path

import torch

from contracts.trainer import OptimizerSpec, SaveHandle, StepReport, WorkerSpec
from trainer_adapters.scripted import Saved, ScriptedTrainer

SHAPES = [(3, 100), (257,), (1,), (40, 7)]
ELEMENTS = 838
OPTIMIZER = OptimizerSpec(lr=1e-2, weight_decay=0.1)


class TinyWorker(ScriptedTrainer):
    """AdamW on float32 masters that are copied to the weights in use, as mixed precision has it.

    seed: what the gradients are drawn from, one after the other.
    skipped: steps, from 0, whose gradient is not finite.
    """

    def __init__(self, seed: int = 0, skipped: range | tuple[int, ...] = ()):
        self.seed = seed
        self.skipped = skipped
        self.closed = False

    def init_worker(self, spec: WorkerSpec) -> None:
        generator = torch.Generator().manual_seed(0)
        self.masters = [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]
        self.steps = 0
        self.reset_optimizer()
        self.adopt()

    def reset_optimizer(self) -> None:
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-2, weight_decay=0.1)

    def step(self) -> StepReport:
        generator = torch.Generator().manual_seed(1000 * self.seed + self.steps)
        for master in self.masters:
            master.grad = torch.randn(master.shape, generator=generator)
        skipped = self.steps in self.skipped
        if not skipped:
            self.optimizer.step()
            self.adopt()
        self.steps += 1
        return StepReport(grad_norm=1.0, learning_rate=1e-2, skipped=skipped, measures={"inner": 1.0})

    def shards(self) -> list[torch.Tensor]:
        return [master.detach() for master in self.masters]

    def adopt(self) -> None:
        self.used = [master.detach().clone() for master in self.masters]

    def vector(self) -> torch.Tensor:
        """Returns the masters end to end."""
        return torch.cat([master.detach().reshape(-1) for master in self.masters])

    def replace(self, vector: torch.Tensor) -> None:
        """Replaces the masters."""
        for shard, part in zip(self.shards(), vector.split([m.numel() for m in self.masters]), strict=True):
            shard.copy_(part.view(shard.shape))
        self.adopt()

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        return iter([(f"weight.{i}", weight) for i, weight in enumerate(self.used)])

    def save(self, directory: Path) -> SaveHandle:
        directory.mkdir(parents=True, exist_ok=True)
        state = [[m.detach() for m in self.masters], self.optimizer.state_dict(), self.steps]
        torch.save(state, directory / "tiny.pt")
        return Saved()

    def load(self, directory: Path) -> None:
        masters, optimizer, self.steps = torch.load(directory / "tiny.pt")
        for shard, saved in zip(self.shards(), masters, strict=True):
            shard.copy_(saved)
        self.optimizer.load_state_dict(optimizer)
        self.adopt()

    def close(self) -> None:
        self.closed = True


class Opaque(TinyWorker):
    """A trainer that gives no access to its shards."""

    def shards(self) -> None:
        return None

    def replace(self, vector: torch.Tensor) -> None:
        raise NotImplementedError
