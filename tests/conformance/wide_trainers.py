"""Trainers that compute or step in float64, and so are more exact than the kit's reference."""

import torch
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from contracts.trainer import OptimizerSpec, PackedBatch
from examples.plain_trainer import PlainTrainer


class ComputesInFloat64(PlainTrainer):
    """Computes in float64 with float32 weights, and rounds only the scores."""

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        decoder = self._model.get_decoder()
        wide = {name: p.double() for name, p in decoder.named_parameters()}
        states = [torch.zeros(0, self._model.config.hidden_size, dtype=torch.float64)]
        for token_ids in batch.token_ids.split(batch.cu_seqlens.diff().tolist()):
            given = (token_ids[None],)
            states.append(functional_call(decoder, wide, given, {"use_cache": False}).last_hidden_state[0])
        return torch.cat(states)

    def _score(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head = self._model.get_output_embeddings()
        chunks = zip(*(x.split(256) for x in (hidden, token_ids, temperature)), strict=True)
        scores = [
            [checkpoint(score, head.weight, *chunk, use_reentrant=False) for score in (_logprobs, _entropies)]
            for chunk in chunks
        ]
        logprobs, entropies = zip(*scores, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)


def _logprobs(
    weight: torch.Tensor, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    log_p = (hidden @ weight.double().T / temperature[:, None].double()).log_softmax(-1)
    return log_p.gather(1, token_ids[:, None]).squeeze(1).float()


def _entropies(
    weight: torch.Tensor, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    log_p = (hidden @ weight.double().T / temperature[:, None].double()).log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).float()


class FlatAdamW(torch.optim.Optimizer):
    """AdamW over one flat buffer, in float64; its moments begin with the first step."""

    def __init__(self, parameters: list[torch.nn.Parameter], spec: OptimizerSpec):
        super().__init__(parameters, {"lr": spec.lr})
        self._parameters, self._spec = parameters, spec
        self._moments: list[torch.Tensor] = []
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        spec, rate, weights = self._spec, self.param_groups[0]["lr"], self._parameters
        gradient = torch.cat([p.grad.flatten().double() for p in weights])
        former = self._moments or [torch.zeros_like(gradient)] * 2
        pairs = zip(former, (gradient, gradient**2), spec.betas, strict=True)
        self._moments = [m * beta + new * (1 - beta) for m, new, beta in pairs]
        self._steps += 1
        mean, square = (m / (1 - b**self._steps) for m, b in zip(self._moments, spec.betas, strict=True))
        updates = (mean / (square.sqrt() + spec.eps)).split([p.numel() for p in weights])
        for p, update in zip(weights, updates, strict=True):
            p.copy_(p.double() * (1 - rate * spec.weight_decay) - rate * update.view_as(p))

    def state_dict(self) -> dict[str, object]:
        return {"moments": self._moments, "steps": self._steps}

    def load_state_dict(self, state: dict) -> None:
        self._moments, self._steps = state["moments"], state["steps"]


class StepsInFloat64(PlainTrainer):
    def reset_optimizer(self) -> None:
        self._optimizer = FlatAdamW(list(self._model.parameters()), self._spec.optimizer)
