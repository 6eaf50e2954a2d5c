"""Prescribed draws on vLLM's first model runner, in two processes.

The API's process gives each choice its key in `extra_args` of its sampling parameters (`with_keys`). In the
engine's, `DrawKeys` follows which row of the batch has which key, and `sample` replaces these rows' tokens.
"""

from copy import copy

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from contracts.draws import uniform
from contracts.errors import ErrorCode
from inference_adapters.vllm.request_checks import KEYS, Refusal

NAME = f"{__name__}:DrawKeys"

_child_parameters = ParentRequest._get_child_sampling_params
_sample = Sampler.sample


def extend() -> None:
    """Extends vLLM's classes in a process."""
    ParentRequest._get_child_sampling_params = child_parameters
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


def with_keys(sampling: SamplingParams, keys: list[str]) -> SamplingParams:
    """Returns sampling parameters with a key for each choice."""
    found = copy(sampling)
    found.extra_args = {**(sampling.extra_args or {}), KEYS: keys}
    return found


def child_parameters(parent: ParentRequest, index: int) -> SamplingParams:
    """Returns the parameters of a choice, with its own key alone."""
    found = _child_parameters(parent, index)
    keys = (parent.sampling_params.extra_args or {}).get(KEYS)
    return with_keys(found, [keys[index]]) if keys else found


class DrawKeys(LogitsProcessor):
    """Knows the key of each row of the batch, and changes no logits."""

    def __init__(self, *_: object):
        self.rows: dict[int, tuple[bytes, list[int]]] = {}  # row -> key, and the tokens sampled so far

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follows which row has which request: removals first, then additions, then moves."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.rows.pop(row, None)
        for row, sampling, _, sampled in batch_update.added:
            keys = (sampling.extra_args or {}).get(KEYS)
            self._put(row, (bytes.fromhex(keys[0]), sampled) if keys else None)
        for row, other, direction in batch_update.moved:
            moved = self.rows.pop(row, None)
            if direction == MoveDirectionality.SWAP:
                self._put(row, self.rows.pop(other, None))
            self._put(other, moved)

    def _put(self, row: int, what: tuple[bytes, list[int]] | None) -> None:
        self.rows.pop(row, None)
        if what:
            self.rows[row] = what


def sample(
    sampler: Sampler, logits: torch.Tensor, metadata: SamplingMetadata, *options
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Samples as vLLM does, and then the rows with keys as these prescribe."""
    sampled, log_p = _sample(sampler, logits, metadata, *options)
    for processor in metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, DrawKeys):
            for row, (key, before) in processor.rows.items():
                sums = log_p[row].exp().cumsum(0, dtype=torch.float64)
                drawn = uniform(key, len(before)) * sums[-1:]
                sampled[row] = torch.searchsorted(sums, drawn, right=True)[0]
    return sampled, log_p
