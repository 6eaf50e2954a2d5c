"""A trainer that emulates a GPU's times: seconds per token, and seconds to gather weights."""

import time
from collections.abc import Iterator

import torch

from contracts.trainer import PackedBatch, TokenScores
from trainer_adapters.scripted import ScriptedTrainer


class EmulatedTrainer(ScriptedTrainer):
    def __init__(self, token_s: float, gather_s: float):
        self._token_s = token_s
        self._gather_s = gather_s

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        """Returns the servers' log-probabilities, as a function of the weights with gradient 0."""
        if grad:
            time.sleep(self._token_s * len(batch.token_ids))
        with torch.set_grad_enabled(grad):
            nothing = 0.0 * sum(weight.sum() for weight in self._weights.values())
            scores = batch.behaviour_logprobs + nothing
        return TokenScores(scores, -scores.detach() if entropy else None)

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        time.sleep(self._gather_s)
        yield from super().gather_weights()
