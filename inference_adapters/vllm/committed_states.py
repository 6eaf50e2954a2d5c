"""Keeps, in a worker with vLLM's first model runner, what the output head read for each sampled token.

Each choice that asks for commitments has a name from the API process, which takes its states at its end.
"""

from typing import Any

import torch
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from inference_adapters.vllm.batch_rows import BatchRows
from inference_adapters.vllm.request_checks import COMMITTED

NAME = f"{__name__}:CommittedRows"

_forward = Sampler.forward
_read: list[torch.Tensor] = []  # [rows of the batch, H]: what the output head read last
_states: dict[str, dict[int, torch.Tensor]] = {}  # name -> number of the token -> [H] bfloat16


def extend() -> None:
    """Extends vLLM's class in a process."""
    Sampler.forward = forward


class CommittedRows(BatchRows):
    name = COMMITTED


def keep_input(model: Any) -> None:
    """Makes a model keep what its output head reads."""
    compute = model.compute_logits

    def compute_logits(hidden_states: torch.Tensor, *options: Any) -> torch.Tensor:
        _read[:] = [hidden_states]
        return compute(hidden_states, *options)

    model.compute_logits = compute_logits


def forward(sampler: Sampler, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *options, **more):
    """Keeps the states of rows with names, and samples as vLLM does."""
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, CommittedRows) and processor.rows:
            states = _read[0][[*processor.rows]].to("cpu", torch.bfloat16)
            for state, (name, sampled) in zip(states, processor.rows.values(), strict=True):
                _states.setdefault(name, {})[len(sampled)] = state  # a recomputed token replaces its state
    return _forward(sampler, logits, sampling_metadata, *options, **more)


def take(name: str, tokens: int) -> bytes:
    """Returns the states of the first tokens, `[tokens, H]` as bfloat16, and forgets the name.

    It is empty if there are none in this worker.
    """
    states = _states.pop(name, {})
    if not tokens or not states:
        return b""
    rows = torch.stack([states[number] for number in range(tokens)])
    return rows.view(torch.uint16).numpy().tobytes()
