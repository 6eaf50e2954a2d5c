"""Prescribed draws on vLLM's first model runner: `sample` replaces the tokens of rows that have keys."""

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from contracts.draws import uniform
from contracts.errors import ErrorCode
from inference_adapters.vllm.batch_rows import BatchRows
from inference_adapters.vllm.request_checks import KEYS, Refusal

NAME = f"{__name__}:DrawKeys"

_sample = Sampler.sample


def extend() -> None:
    """Extends vLLM's class in a process."""
    Sampler.sample = sample


def check_keyed(sampling: SamplingParams) -> None:
    """Raises ContractError for parameters, forced calls among them, that change what keys draw from."""
    changed = [
        *(sampling.min_p, sampling.min_tokens, sampling.presence_penalty, sampling.frequency_penalty),
        *(sampling.repetition_penalty != 1, sampling.logit_bias, sampling.allowed_token_ids),
        *(sampling.bad_words, sampling.structured_outputs),
    ]
    if any(changed):
        why = "draw_keys: another parameter of the request changes the distribution"
        raise Refusal(ErrorCode.INVALID_REQUEST, why, "draw_keys")


class DrawKeys(BatchRows):
    name = KEYS


def sample(
    sampler: Sampler, logits: torch.Tensor, metadata: SamplingMetadata, *options
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Samples as vLLM does, and then the rows with keys as these prescribe."""
    sampled, log_p = _sample(sampler, logits, metadata, *options)
    for processor in metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, DrawKeys):
            for row, (key, before) in processor.rows.items():
                sums = log_p[row].exp().cumsum(0, dtype=torch.float64)
                drawn = uniform(bytes.fromhex(key), len(before)) * sums[-1:]
                sampled[row] = torch.searchsorted(sums, drawn, right=True)[0]
    return sampled, log_p
