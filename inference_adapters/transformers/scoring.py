"""Computes log-probabilities of given tokens, for `POST /score`.

Sequences are processed in chunks with a KV cache, because the logits of a complete sequence would need more
memory than the model. Models with recurrent layers read a whole sequence for each chunk of logits: not all
continue their states by several tokens.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

LOGITS_TOKENS = 512  # tokens of a batch that have logits at the same time
LEAST_FILLED = 0.5  # minimum ratio of a sequence's length to the longest one of its batch


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    sequences: list[list[int]],
    temperature: float,
    batch_tokens: int,
    continues: bool = True,
) -> list[list[float]]:
    """Returns log p(token j + 1 | tokens up to j) of every sequence, in nats.

    A batch has at most `batch_tokens` tokens, padding included, or a single sequence.
    """
    logprobs: list[list[float]] = [[] for _ in sequences]
    for batch in _batches(sequences, batch_tokens):
        scored = _score_batch(model, [sequences[i] for i in batch], temperature, continues)
        for i, of_sequence in zip(batch, scored.tolist(), strict=True):
            logprobs[i] = of_sequence[: len(sequences[i]) - 1]
    return logprobs


def _score_batch(
    model: PreTrainedModel, sequences: list[list[int]], temperature: float, continues: bool
) -> Tensor:
    """Returns `[B, T - 1]`, with arbitrary values after the end of a sequence."""
    # Padded on the right: causal attention ignores the padding.
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sequences], batch_first=True)
    ids = ids.to(model.device)  # [B, T]
    given = ids[:, :-1]
    scored = []
    cache = None
    for place in torch.arange(given.shape[1], device=ids.device).split(
        max(1, LOGITS_TOKENS // len(sequences))
    ):
        if continues:
            output = model(input_ids=given[:, place], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
        else:
            output = model(input_ids=given, use_cache=False, logits_to_keep=place)
        log_p = output.logits.float().div_(temperature).log_softmax(-1)  # [B, place, vocabulary]
        scored.append(log_p.gather(2, ids[:, place + 1, None])[:, :, 0])
    return torch.cat(scored, dim=1)


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
