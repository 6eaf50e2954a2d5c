"""Follows, in the engine's process, which row of vLLM's batch has which request.

The API's process gives each choice a value of its own in `extra_args` of its sampling parameters: a list with
one for each choice (`with_values`).
"""

from copy import copy
from typing import NamedTuple

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from inference_adapters.vllm.request_checks import OF_CHOICES

_child_parameters = ParentRequest._get_child_sampling_params


def extend() -> None:
    """Extends vLLM's class in a process."""
    ParentRequest._get_child_sampling_params = child_parameters


def with_values(sampling: SamplingParams, name: str, values: list[str]) -> SamplingParams:
    """Returns sampling parameters with a value for each choice."""
    found = copy(sampling)
    found.extra_args = {**(sampling.extra_args or {}), name: values}
    return found


def child_parameters(parent: ParentRequest, index: int) -> SamplingParams:
    """Returns the parameters of a choice, with its own values alone."""
    found = _child_parameters(parent, index)
    for name, values in (parent.sampling_params.extra_args or {}).items():
        if name in OF_CHOICES:
            found = with_values(found, name, [values[index]])
    return found


class Row(NamedTuple):
    """The value of a request, and the tokens that it has sampled so far, which vLLM extends."""

    value: str
    sampled: list[int]


class BatchRows(LogitsProcessor):
    """Knows the value of each row of the batch, and changes no logits. name: of the value."""

    name: str

    def __init__(self, *_: object):
        self.rows: dict[int, Row] = {}

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
            values = (sampling.extra_args or {}).get(self.name)
            self._put(row, Row(values[0], sampled) if values else None)
        for row, other, direction in batch_update.moved:
            moved = self.rows.pop(row, None)
            if direction == MoveDirectionality.SWAP:
                self._put(row, self.rows.pop(other, None))
            self._put(other, moved)

    def _put(self, row: int, what: Row | None) -> None:
        self.rows.pop(row, None)
        if what:
            self.rows[row] = what
