"""Samples tokens with parameters per row, and returns their log-probabilities (G4).

transformers' sampling has one mode per batch, so it cannot mix greedy and sampled rows.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from contracts.inference import SamplingParameters

if TYPE_CHECKING:
    from inference_adapters.transformers.batched_request import Request


def sample(
    logits: Tensor,  # [N, V] float32
    sampling: list[SamplingParameters],  # [N] parameters of each row
    numbers: list[float | None],  # [N] the random number of each row; None: torch draws it
) -> tuple[Tensor, Tensor]:
    """Returns token ids `[N]` and their log-probabilities `[N]`, in nats.

    A log-probability is under the distribution that the token was sampled from: after temperature and
    truncation, or the unscaled softmax at temperature 0. It is NaN if the row's logits are not finite, or
    overflow when divided by the temperature.
    """
    log_p, greedy = _distributions(logits, sampling)
    undefined = log_p.isnan().any(-1)
    log_p = log_p.masked_fill(undefined[:, None], -math.log(log_p.shape[-1]))  # uniform: any index will do

    # float64, because a float32 sum over a large vocabulary would lose unlikely tokens.
    cdf = log_p.exp().cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(len(sampling), 1, dtype=torch.float64, device=logits.device)
    given = uniform.new_tensor([-1.0 if number is None else number for number in numbers])[:, None]
    uniform = torch.where(given < 0, uniform, given)
    token_ids = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True)[:, 0]
    token_ids = torch.where(greedy, logits.argmax(-1), token_ids)
    logprobs = log_p.gather(1, token_ids[:, None])[:, 0]
    return token_ids, logprobs.masked_fill(undefined, torch.nan)


def draw(logits: Tensor, states: Tensor, requests: "Sequence[Request]") -> tuple[Tensor, Tensor]:
    """Samples the next token of each request, `[N]` of each row. Sets what else the requests ask for.

    states: `[N, H]`, from which the output head made the logits.
    """
    rows = [request.sampling for request in requests]
    token_ids, logprobs = sample(logits, rows, [request.number() for request in requests])
    asking = [row for row, sampling in enumerate(rows) if sampling.top_logprobs]
    if asking:
        found = likeliest(logits[asking], [rows[row] for row in asking])
        for row, tokens in zip(asking, found, strict=True):
            requests[row].likeliest = tokens
    committing = [row for row, sampling in enumerate(rows) if sampling.commitments]
    if committing:
        for row, state in zip(committing, states[committing].to("cpu", torch.bfloat16), strict=True):
            requests[row].outbox.states.append(state.clone())  # a part would keep the whole batch
    return token_ids, logprobs


def likeliest(logits: Tensor, sampling: list[SamplingParameters]) -> list[list[tuple[int, float]]]:
    """Returns each row's `top_logprobs` most likely (token, log-probability), in descending order.

    Tokens that truncation removes are not included.
    """
    log_p, _ = _distributions(logits, sampling)
    top = log_p.topk(min(max(s.top_logprobs for s in sampling), log_p.shape[-1]))
    rows = zip(sampling, top.indices.tolist(), top.values.tolist(), strict=True)
    return [
        [pair for pair in zip(ids, values, strict=True) if pair[1] > -math.inf][: s.top_logprobs]
        for s, ids, values in rows
    ]


def _distributions(logits: Tensor, sampling: list[SamplingParameters]) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities `[N, V]` after temperature and truncation, and the greedy rows `[N]`."""
    temperatures = logits.new_tensor([s.temperature for s in sampling])
    greedy = temperatures == 0
    scaled = logits / temperatures.masked_fill(greedy, 1.0)[:, None]
    if any(s.top_k is not None or s.top_p is not None for s in sampling):
        scaled = torch.where(greedy[:, None], scaled, _truncate(scaled, sampling))
    return scaled.log_softmax(-1), greedy


def _truncate(scaled: Tensor, sampling: list[SamplingParameters]) -> Tensor:
    """Keeps the `top_k` most likely tokens, and of those the smallest set with mass `top_p`. Others: -inf."""
    vocabulary = scaled.shape[-1]
    top_k = scaled.new_tensor([vocabulary if s.top_k is None else min(s.top_k, vocabulary) for s in sampling])
    top_p = scaled.new_tensor([torch.inf if s.top_p is None else s.top_p for s in sampling])

    ordered, order = scaled.sort(-1, descending=True)
    rank = torch.arange(vocabulary, device=scaled.device)
    ordered = ordered.masked_fill(rank >= top_k[:, None], -torch.inf)
    p = ordered.softmax(-1)
    likelier = p.cumsum(-1) - p  # [N, V] total probability of more likely tokens
    cut = (likelier >= top_p[:, None]) & (rank > 0)  # rounding must not remove the most likely token
    return torch.empty_like(scaled).scatter_(-1, order, ordered.masked_fill(cut, -torch.inf))
