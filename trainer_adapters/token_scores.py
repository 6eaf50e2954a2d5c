"""A causal language model that scores the tokens of a pack without ever holding `[T, vocab]` logits.

Knows nothing of sharding or optimizers: a backend wraps `TokenScorer` as the root of its own engine, so
that head and embedding are whole wherever `forward` and its backward use them.
"""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from contracts.trainer import PackedBatch
from trainer_adapters.attention import PACKED, Packing

PACKED_LAYERS = {"full_attention", "sliding_attention"}
# Config fields that change logits between the head and the softmax; `forward` applies none of them.
LOGIT_TRANSFORMS = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}


class TokenScorer(torch.nn.Module):
    """`forward(batch)` gives every token's log-probability; `model` must use "packed" attention."""

    def __init__(self, model: PreTrainedModel, *, fp32_head: bool, logits_chunk: int):
        super().__init__()
        check_supported(model)
        self.model = model
        self.fp32_head = fp32_head
        self.logits_chunk = logits_chunk

    @property
    def layers(self) -> torch.nn.ModuleList:
        return self.model.get_decoder().layers

    def forward(self, batch: PackedBatch, entropy: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities and, if asked, entropies: `[T]` float32, 0 at the first token of a sequence."""
        decoder = self.model.get_decoder()
        hidden = decoder(
            input_ids=batch.token_ids.unsqueeze(0),
            position_ids=batch.position_ids.unsqueeze(0),
            use_cache=False,
            packing=Packing(batch.cu_seqlens),
        ).last_hidden_state.squeeze(0)  # [T, hidden]

        predicted = (batch.position_ids > 0).nonzero().squeeze(1)  # tokens with one before them
        logprobs, entropies = self._score(
            hidden[predicted - 1], batch.token_ids[predicted], batch.temperature[predicted], entropy
        )

        zeros = torch.zeros_like(batch.temperature)
        return (
            zeros.index_copy(0, predicted, logprobs),
            zeros.index_copy(0, predicted, entropies) if entropy else None,
        )

    def _score(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Chunk by chunk; backward computes a chunk's logits again. Without a token there is still one
        (empty) chunk: the head must take part in every backward, or ranks would reduce different sets."""
        head = self.model.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if self.fp32_head:
            hidden, weight = hidden.float(), weight.float()
            bias = None if bias is None else bias.float()
        chunks = zip(*(x.split(self.logits_chunk) for x in (hidden, token_ids, temperature)), strict=True)
        scores = [
            checkpoint(
                score_chunk, *chunk, weight, bias, entropy, use_reentrant=False, preserve_rng_state=False
            )
            for chunk in chunks
        ]
        logprobs, entropies = zip(*scores, strict=True)
        return torch.cat(logprobs), torch.cat(entropies) if entropy else None


def score_chunk(
    hidden: torch.Tensor,  # [C, hidden], of the token before
    token_ids: torch.Tensor,  # [C]
    temperature: torch.Tensor,  # [C] float32
    weight: torch.Tensor,  # [vocab, hidden]
    bias: torch.Tensor | None,  # [vocab]
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = F.linear(hidden, weight, bias).float().div_(temperature.unsqueeze(1))
    normaliser = logits.logsumexp(dim=1)
    logprobs = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1) - normaliser
    if not entropy:
        return logprobs, None
    with torch.no_grad():
        log_distribution = logits - normaliser.unsqueeze(1)
        return logprobs, -(log_distribution.exp() * log_distribution).sum(dim=1)


def check_supported(model: PreTrainedModel) -> None:
    """Refuse, before training, what would be scored wrongly without an error."""
    config, name = model.config, type(model).__name__
    if config._attn_implementation != PACKED:
        raise ValueError(f"{name} must be loaded with attn_implementation={PACKED!r}")
    if not hasattr(model.get_decoder(), "layers"):
        raise ValueError(f"{name} has no list of decoder layers to shard")
    if unfit := set(getattr(config, "layer_types", None) or ()) - PACKED_LAYERS:
        raise ValueError(
            f"{name} has {', '.join(sorted(unfit))}: its state would run across a pack's sequences"
        )
    for field, neutral in LOGIT_TRANSFORMS.items():
        if getattr(config, field, None) not in (None, neutral):
            raise ValueError(f"{name} transforms its logits ({field}), which scoring in chunks does not")
