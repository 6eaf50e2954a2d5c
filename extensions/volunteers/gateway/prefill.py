"""What a model says about given completions: where in each distribution their tokens lie."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from contracts.commitments import Difference, compare

LOGITS_ROWS = 128  # rows of logits that are in memory at one time
ROWS_AGAIN = 1024  # the same of models that read a whole sequence again for each chunk of rows
BATCH_TOKENS = 8192  # padding included
ALIKE = 0.5  # shortest sequence of a batch, as a share of its longest


@dataclass(frozen=True)
class Prefilled:
    """For each token of a completion: float64 arrays `[T]`, in the order of the tokens.

    low, high: between these numbers the token is the one that is drawn. logprobs: of the token, in nats.
    best: the largest log-probability of a token there. differences: of each chunk's commitments, if there are
    some.
    """

    low: np.ndarray
    high: np.ndarray
    logprobs: np.ndarray
    best: np.ndarray
    differences: Sequence[Difference] = ()


@torch.inference_mode()
def prefill(
    model: PreTrainedModel,
    sequences: Sequence[tuple[list[int], list[int]]],
    temperatures: Sequence[float],
    proofs: Sequence[bytes] | None = None,
) -> list[Prefilled]:
    """Returns what `model` says about each (prompt, completion). A temperature of 0 counts as 1.

    proofs: commitments of each completion, which are compared.
    """
    found: dict[int, Prefilled] = {}
    for batch in _batches([len(prompt) + len(ids) for prompt, ids in sequences]):
        scales = [temperatures[i] or 1.0 for i in batch]
        claimed = proofs and [proofs[i] for i in batch]
        of_batch = _of_batch(model, [sequences[i] for i in batch], scales, claimed)
        found |= zip(batch, of_batch, strict=True)
    return [found[i] for i in range(len(sequences))]


def _of_batch(
    model: PreTrainedModel,
    batch: list[tuple[list[int], list[int]]],
    temperatures: list[float],
    proofs: list[bytes] | None,
) -> Iterator[Prefilled]:
    # Padded on the right: causal attention ignores the padding.
    rows = [torch.tensor(prompt + ids) for prompt, ids in batch]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(model.device)  # [B, T]
    scale = torch.tensor(temperatures, device=model.device)[:, None, None]
    first = min(len(prompt) for prompt, _ in batch) - 1  # the first position whose logits are needed
    parts: list[Tensor] = []
    states: list[Tensor] = []  # [B, P, H] of each part, which its logits were computed from
    continues = _continues(model)
    cache = None
    begin = 0
    step = max(1, (LOGITS_ROWS if continues else ROWS_AGAIN) // len(batch))
    for end in range(first + step, tokens.shape[1] - 1 + step, step):
        end = min(end, tokens.shape[1] - 1)
        kept = end - max(begin, first)
        if continues:
            given = {"input_ids": tokens[:, begin:end], "past_key_values": cache, "use_cache": True}
        else:
            given = {"input_ids": tokens[:, :end], "use_cache": False}
        with _keeping_states(model, None if proofs is None else states):
            output = model(**given, logits_to_keep=kept)
        cache = output.get("past_key_values")
        parts.append(_places(output.logits.float() / scale, tokens[:, end - kept + 1 : end + 1]))
        begin = end
    places = torch.cat(parts, dim=1).double().cpu().numpy()  # [B, T - 1 - first, 4]
    rows_of = None if proofs is None else torch.cat(states, dim=1)
    for row, (prompt, ids) in enumerate(batch):
        own = slice(len(prompt) - 1 - first, len(prompt) - 1 - first + len(ids))
        differences = [] if proofs is None else compare(proofs[row], rows_of[row, own].float().numpy())
        yield Prefilled(*places[row, own].T, differences)


@contextmanager
def _keeping_states(model: PreTrainedModel, states: list[Tensor] | None) -> Iterator[None]:
    """Adds what the output head reads in the block to `states`, unless it is None."""
    if states is None:
        yield
        return

    def keep(_: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        states.append(inputs[0].to("cpu", torch.bfloat16))  # as commitments round

    with model.get_output_embeddings().register_forward_pre_hook(keep):
        yield


def _continues(model: PreTrainedModel) -> bool:
    """Returns True if the model continues a sequence by several tokens; not all recurrent layers do."""
    layers = DynamicCache(config=model.config.get_text_config()).layers
    return all(isinstance(layer, DynamicLayer) for layer in layers)


def _places(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns low, high, log-probability and best log-probability of each token, `[B, P, 4]`, float64."""
    log_p = logits.log_softmax(-1)
    cdf = log_p.exp().cumsum(-1, dtype=torch.float64)
    ids = tokens[..., None]
    high = cdf.gather(-1, ids) / cdf[..., -1:]
    before = cdf.gather(-1, (ids - 1).clamp_min(0)) / cdf[..., -1:]
    low = torch.where(ids > 0, before, torch.zeros_like(before))
    logprobs = log_p.gather(-1, ids).double()
    best = log_p.max(-1, keepdim=True).values.double()
    return torch.cat([low, high, logprobs, best], dim=-1)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yields batches of indices of sequences with similar lengths."""
    batch: list[int] = []
    longest = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        full = longest * (len(batch) + 1) > BATCH_TOKENS or len(batch) == LOGITS_ROWS
        if batch and (full or lengths[i] < ALIKE * longest):
            yield batch
            batch = []
        if not batch:
            longest = lengths[i]
        batch.append(i)
    if batch:
        yield batch
