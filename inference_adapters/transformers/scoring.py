"""Computes log-probabilities of given tokens by plain forward passes, for `POST /score`."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel


@torch.no_grad()
def score(
    model: PreTrainedModel, sequences: list[list[int]], temperature: float, batch_tokens: int
) -> list[list[float]]:
    """Returns log p(token j + 1 | tokens up to j) of every sequence, in nats.

    One pass holds at most `batch_tokens` with padding, or one sequence.
    """
    logprobs: list[list[float]] = []
    for batch in _batches(sequences, batch_tokens):
        # Padded on the right: causal attention ignores the padding.
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in batch], batch_first=True)
        ids = ids.to(model.device)  # [B, T]
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[:, :-1].float() / temperature
        chosen = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]  # [B, T - 1]
        logprobs += [row[: len(s) - 1] for row, s in zip(chosen.tolist(), batch, strict=True)]
    return logprobs


def _batches(sequences: list[list[int]], batch_tokens: int) -> Iterator[list[list[int]]]:
    batch: list[list[int]] = []
    for sequence in sequences:
        longest = max(len(s) for s in (*batch, sequence))
        if batch and longest * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch
