"""Keeps, in a worker with vLLM's first model runner, what the output head read for each sampled token.

Each choice that asks for commitments has a name from the API process, which takes its states at its end.
"""

from functools import cache
from typing import Any

import torch
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from inference_adapters.vllm.batch_rows import BatchRows
from inference_adapters.vllm.request_checks import COMMITTED

NAME = f"{__name__}:CommittedRows"

_sampler = Sampler.forward
_read: list[torch.Tensor] = []  # [rows of the batch, H]: what the output head read last
_states: dict[str, dict[int, torch.Tensor]] = {}  # name -> number of the token -> [H] bfloat16


def extend() -> None:
    """Extends vLLM's class in a process."""
    Sampler.forward = sample


class CommittedRows(BatchRows):
    """Exists in workers alone, before their first batch."""

    name = COMMITTED

    def __init__(self, *options: object):
        super().__init__(*options)
        extend_head()


@cache
def extend_head() -> None:
    """Extends the output head in a worker: it keeps what it reads."""
    # Its module loads a GPU's kernels, so processes without a model do not import it.
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    forward = LogitsProcessor.forward

    def read(processor: LogitsProcessor, lm_head: Any, hidden_states: torch.Tensor, *options, **more):
        _read[:] = [hidden_states]
        return forward(processor, lm_head, hidden_states, *options, **more)

    LogitsProcessor.forward = read


def sample(sampler: Sampler, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *options, **more):
    """Keeps the states of rows with names, and samples as vLLM does."""
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, CommittedRows) and processor.rows:
            states = _read[0][[*processor.rows]].to("cpu", torch.bfloat16)
            for state, (name, sampled) in zip(states, processor.rows.values(), strict=True):
                # A clone, for a part would keep the states of all requests. A token that is computed again
                # replaces its state.
                _states.setdefault(name, {})[len(sampled)] = state.clone()
    return _sampler(sampler, logits, sampling_metadata, *options, **more)


def take(name: str, tokens: int) -> bytes:
    """Returns the states of the first tokens, `[tokens, H]` as bfloat16, and forgets the name.

    It is empty if there are none in this worker.
    """
    states = _states.pop(name, {})
    if not states:
        return b""
    rows = torch.stack([states[number] for number in range(tokens)])
    return rows.view(torch.uint16).numpy().tobytes()


def forget(names: list[str]) -> None:
    """Forgets the states of choices that nobody waits for."""
    for name in names:
        _states.pop(name, None)
