"""A trainer that computes in float64, and so is more exact than the kit's reference."""

import torch
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from contracts.trainer import PackedBatch
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
