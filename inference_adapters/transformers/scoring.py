"""Computes log-probabilities of given tokens, for `POST /score`.

Sequences are processed in chunks with a KV cache, because the logits of a complete sequence would need more
memory than the model. Models with recurrent layers read a whole sequence for each chunk of logits: not all
continue their states by several tokens.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

LOGITS_TOKENS = 512  # tokens of a batch that have logits at the same time
LEAST_FILLED = 0.5  # minimum ratio of a sequence's length to the longest one of its batch


class StoppedError(Exception):
    """Nobody waits for the scores."""


class Scored(NamedTuple):
    """The log-probabilities of a sequence, and at each the likeliest ids with theirs."""

    logprobs: list[float]
    top: list[list[tuple[int, float]]]


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    sequences: list[list[int]],
    temperature: float,
    batch_tokens: int,
    continues: bool = True,
    top: int = 0,
    stopped: Callable[[], bool] = bool,
) -> list[Scored]:
    """Returns log p(token j + 1 | tokens up to j) of every sequence, in nats, and `top` of the likeliest ids.

    A batch has at most `batch_tokens` tokens, padding included, or a single sequence. Raises
    StoppedError soon after `stopped` returns True.
    """
    found = [Scored([], []) for _ in sequences]
    for batch in _batches(sequences, batch_tokens):
        logprobs, likeliest = _score_batch(
            model, [sequences[i] for i in batch], temperature, continues, top, stopped
        )
        for i, of_sequence, pairs in zip(batch, logprobs.tolist(), likeliest, strict=True):
            length = len(sequences[i]) - 1
            found[i] = Scored(of_sequence[:length], pairs[:length])
    return found


def _score_batch(
    model: PreTrainedModel,
    sequences: list[list[int]],
    temperature: float,
    continues: bool,
    top: int,
    stopped: Callable[[], bool],
) -> tuple[Tensor, list[list[list[tuple[int, float]]]]]:
    """Returns `[B, T - 1]`, with arbitrary values after the end of a sequence, and the likeliest of each."""
    # Padded on the right: causal attention ignores the padding.
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sequences], batch_first=True)
    ids = ids.to(model.device)  # [B, T]
    given = ids[:, :-1]
    scored = []
    likeliest: list[list[list[tuple[int, float]]]] = [[] for _ in sequences]
    cache = None
    for place in torch.arange(given.shape[1], device=ids.device).split(
        max(1, LOGITS_TOKENS // len(sequences))
    ):
        if stopped():
            raise StoppedError
        if continues:
            output = model(input_ids=given[:, place], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
        else:
            output = model(input_ids=given, use_cache=False, logits_to_keep=place)
        log_p = output.logits.float().div_(temperature).log_softmax(-1)  # [B, place, vocabulary]
        scored.append(log_p.gather(2, ids[:, place + 1, None])[:, :, 0])
        if top:
            best = log_p.topk(min(top, log_p.shape[-1]))
            for pairs, tokens, values in zip(
                likeliest, best.indices.tolist(), best.values.tolist(), strict=True
            ):
                pairs += [[*zip(*position, strict=True)] for position in zip(tokens, values, strict=True)]
    return torch.cat(scored, dim=1), likeliest


def _batches(sequences: list[list[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Yields batches of indices of sequences with similar lengths, without sequences shorter than 2."""
    predicting = [i for i in range(len(sequences)) if len(sequences[i]) > 1]
    batch: list[int] = []
    longest = 0
    for i in sorted(predicting, key=lambda i: len(sequences[i]), reverse=True):
        full = longest * (len(batch) + 1) > batch_tokens or len(batch) == LOGITS_TOKENS
        if batch and (full or len(sequences[i]) < LEAST_FILLED * longest):
            yield batch
            batch = []
        if not batch:
            longest = len(sequences[i])
        batch.append(i)
    if batch:
        yield batch
