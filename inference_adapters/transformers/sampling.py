"""How tokens are drawn, and the log-probability that is reported with each (G4).

Pure tensor mathematics on the logits of one forward pass; every row has its own parameters. The
library's own sampling has one mode for the whole batch and no greedy rows beside sampled ones.
"""

import torch
from torch import Tensor

from contracts.inference import SamplingParameters


def sample(
    logits: Tensor,  # [N, V] float32
    sampling: list[SamplingParameters],  # one a row
    generators: list[torch.Generator | None],  # one a row; None draws from torch's own
) -> tuple[Tensor, Tensor]:
    """Token ids [N] and their log-probabilities [N] under the distribution each was drawn from:
    after temperature and truncation, or the unscaled softmax where the temperature is 0."""
    temperatures = logits.new_tensor([s.temperature for s in sampling])
    greedy = temperatures == 0
    scaled = logits / temperatures.masked_fill(greedy, 1.0)[:, None]
    if any(_truncates(s) for s in sampling):
        scaled = _truncate(scaled, sampling)
    log_p = scaled.log_softmax(-1)

    # In float64: the running sum of a large vocabulary would swallow unlikely tokens in float32.
    cdf = log_p.exp().cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(len(sampling), 1, dtype=torch.float64, device=logits.device)
    for row, generator in enumerate(generators):
        if generator is not None:
            uniform[row] = torch.rand(1, dtype=torch.float64, generator=generator)
    token_ids = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True)[:, 0]
    token_ids = torch.where(greedy, logits.argmax(-1), token_ids)
    return token_ids, log_p.gather(1, token_ids[:, None])[:, 0]


def _truncates(sampling: SamplingParameters) -> bool:
    return sampling.temperature > 0 and (sampling.top_k is not None or sampling.top_p is not None)


def _truncate(scaled: Tensor, sampling: list[SamplingParameters]) -> Tensor:
    """Keep a row's `top_k` likeliest tokens, and of those the fewest that hold `top_p`; -inf elsewhere."""
    vocabulary = scaled.shape[-1]
    keep_all = [not _truncates(s) for s in sampling]
    top_k = [vocabulary if keep else s.top_k or vocabulary for keep, s in zip(keep_all, sampling)]
    top_p = [1.0 if keep or s.top_p is None else s.top_p for keep, s in zip(keep_all, sampling)]

    ordered, order = scaled.sort(-1, descending=True)
    rank = torch.arange(vocabulary, device=scaled.device)
    ordered = ordered.masked_fill(rank >= torch.tensor(top_k, device=scaled.device)[:, None], -torch.inf)
    p = ordered.softmax(-1)
    likelier = p.cumsum(-1) - p  # [N, V] the mass of the tokens before each
    # The likeliest token always stays; the running sum rounds, so it must not cut where p is 1.
    limit = scaled.new_tensor([torch.inf if p == 1.0 else p for p in top_p])
    cut = (likelier >= limit[:, None]) & (rank > 0)
    return torch.empty_like(scaled).scatter_(-1, order, ordered.masked_fill(cut, -torch.inf))
