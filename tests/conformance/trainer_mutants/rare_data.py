"""Broken trainers of T1 and T2 whose fault only some models or some data reveal."""

import torch

from contracts.trainer import PackedBatch, TokenScores
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.gradient import scaled
from tests.conformance.trainer_mutants.mutants import mutant


@mutant("T1", "has dropout in training mode is scored wrongly.*after a step", part="special-models")
class TrainsWithDropoutAfterTheFirstBackward(PlainTrainer):
    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        self._model.train()


@mutant("T2", "gradient of .* is off|gradient norm", part="cuts")
class SkipsWhatHasNoAdvantage(PlainTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        if not grad or (batch.advantages * batch.loss_mask).any():
            return scores
        found = {name: tensor for name, tensor in vars(scores).items() if tensor is not None}
        return TokenScores(**{name: scaled(tensor, lambda g: 0 * g) for name, tensor in found.items()})
