"""The scripted engine's model, implemented again from its formula: the expected log-probabilities."""

from collections.abc import Mapping, Sequence

import torch

Weights = Mapping[str, torch.Tensor]


def step(weights: Weights, state: torch.Tensor, token_id: int) -> torch.Tensor:
    w = {name: tensor.float() for name, tensor in weights.items()}
    inner = w["model.layers.0.weight"] @ state + w["model.layers.0.bias"]
    return (inner + w["model.embed_tokens.weight"][token_id]).tanh()


def state_after(weights: Weights, token_ids: Sequence[int]) -> torch.Tensor:
    state = torch.zeros(8)
    for token_id in token_ids:
        state = step(weights, state, token_id)
    return state


def distribution(
    weights: Weights, state: torch.Tensor, temperature: float = 1.0, keep: int | None = None
) -> torch.Tensor:
    """Returns log-probabilities [97] of the next token, over the `keep` most likely if given."""
    w = {name: tensor.float() for name, tensor in weights.items()}
    logits = w["model.embed_tokens.weight"] @ (w["model.norm.weight"] * state) + w["lm_head.bias"]
    p = (logits / temperature).softmax(-1)
    if keep is not None:
        p = torch.where(p >= p.sort(descending=True).values[keep - 1], p, 0.0)
    return (p / p.sum()).log()


def continuation_logprobs(
    weights: Weights, prompt: Sequence[int], sampled: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Returns log p of each sampled token after the prompt and the earlier sampled tokens."""
    state, found = state_after(weights, prompt), []
    for token_id in sampled:
        found.append(distribution(weights, state, temperature)[token_id].item())
        state = step(weights, state, token_id)
    return found
