"""Broken trainers of T2."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from contracts.trainer import PackedBatch, StepReport, TokenScores
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.fsdp import FSDPTrainer


@mutant(
    "T2",
    "gradient of .* 0.125 times",
    part="cuts",
)
class DividesByMicroBatches(FSDPTrainer):
    _backwards = 0

    def backward(self, loss: torch.Tensor) -> None:
        self._backwards += 1
        super().backward(loss)

    def step(self) -> StepReport:
        for _, parameter in self._trained():
            if parameter.grad is not None:
                parameter.grad /= self._backwards
        self._backwards = 0
        return super().step()


@mutant(
    "T2",
    "all tensors are 0.5 times",
    part="cuts",
    ranks=2,
)
class AveragesOverRanks(FSDPTrainer):
    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss / dist.get_world_size())


@mutant(
    "T2",
    "gradient of .* is off by",
    part="cuts",
)
class PretendsThatTheEntropyHasAGradient(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        return replace(scores, entropy=scores.entropy.detach() + 0 * scores.logprobs) if entropy else scores


class _Scaled(torch.autograd.Function):
    """Changes the gradient with a function, which is called in backward."""

    @staticmethod
    def forward(ctx, tensor, change):
        ctx.change = change
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


def scaled(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Returns the tensor. Its gradient is replaced by what `change` returns for it."""
    return _Scaled.apply(tensor, change)


def _with_gradient(scores: TokenScores, change: Callable[[torch.Tensor], torch.Tensor]) -> TokenScores:
    return replace(scores, logprobs=scaled(scores.logprobs, change))


@mutant("T2", "gradient of .* is off|gradient norm", part="orders")
class KeepsOnlyTheLastForward(FSDPTrainer):
    """Backward uses the state of the last forward."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        if not grad:
            return scores
        self._last = batch
        return _with_gradient(scores, lambda gradient: gradient * (self._last is batch))


@mutant("T2", "gradient of .* is off|gradient norm", part="orders")
class ProbesOverwriteTheGraph(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        self._learns = grad
        return _with_gradient(scores, lambda gradient: gradient * self._learns) if grad else scores


@mutant("T2", "gradient of .* is off|gradient norm", part="orders")
class ProbesClearTheGradient(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if not grad:
            self._optimizer.zero_grad()
        return super().forward(batch, grad, entropy)


@mutant(
    "T2",
    "gradient of .* is off|gradient norm",
    part="orders",
)
class GatheringClearsTheGradient(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        self._optimizer.zero_grad()
        return super().gather_weights()


@mutant("T2", "gradient of .* is off|gradient norm", part="orders")
class ExportingClearsTheGradient(FSDPTrainer):
    def export(self, directory: Path) -> None:
        super().export(directory)
        self._optimizer.zero_grad()


@mutant("T2", "gradient of .* is off|gradient norm", part="cuts")
class LosesTheGradientAfterTheFirstChunk(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        first = (torch.arange(batch.num_tokens) < 1024).float()
        return _with_gradient(scores, lambda gradient: gradient * first) if grad else scores


@mutant(
    "T2",
    "gradient of .* is off|gradient norm",
    part="orders",
)
class LearnsOnlyWithEntropies(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        return _with_gradient(scores, lambda gradient: gradient * 0) if grad and not entropy else scores


@mutant("T2", "gradient of .* is off", part="cuts")
class AveragesTheWeightsOfTokens(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        if not (grad and batch.num_tokens):
            return scores
        return _with_gradient(scores, lambda gradient: gradient.mean().expand_as(gradient))


@mutant(
    "T2",
    "gradient of .* is off",
    part="cuts",
    ranks=2,
)
class KeepsVectorsOfRank0(PlainTrainer):
    def step(self) -> StepReport:
        for parameter in self._model.parameters():
            if parameter.dim() == 1 and parameter.grad is not None and self._spec.rank:
                parameter.grad.zero_()
        return super().step()
