"""Makes SGLang's workers score prompts at the request's temperature, by hooks of SGLang's own plugins.

SGLang's log-probabilities of a prompt ignore the temperature. A request that is read again after a retraction
has some too. So the logits from which a token is sampled are not divided.
"""

from collections.abc import Callable

import torch
from sglang.srt.layers.logits_processor import LogitsMetadata
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    """Registers the hooks, which SGLang applies when a worker starts."""
    metadata = "sglang.srt.layers.logits_processor.LogitsMetadata.from_forward_batch"
    HookRegistry.register(metadata, with_temperatures, HookType.AROUND)
    scores = "sglang.srt.layers.logprob_processor.InputLogprobProcessor.forward"
    HookRegistry.register(scores, at_temperatures, HookType.AROUND)


def with_temperatures(original: Callable, kind: type, batch: ForwardBatch) -> LogitsMetadata:
    """Adds the temperature of each request to the metadata of a prefill with log-probabilities."""
    metadata = original(kind, batch)
    if metadata.extend_return_logprob:
        metadata.temperature = batch.sampling_info.temperatures  # [requests, 1]
    return metadata


def at_temperatures(
    original: Callable, processor: object, *, get_logits_fn: Callable, **inputs: object
) -> tuple[object, torch.Tensor]:
    """Returns SGLang's log-probabilities of a prefill at its temperatures, and the logits to sample from."""
    temperatures = inputs["logits_metadata"].temperature[inputs["token_to_seq_idx"]]  # [rows, 1]
    sampled = inputs["sample_indices"]
    to_sample_from = []
    done = 0

    def divided(states: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        nonlocal done
        began = done
        done += len(states)
        logits = get_logits_fn(states, *args, **options)
        to_sample_from.append(logits[sampled[(sampled >= began) & (sampled < done)] - began])
        return logits.div_(temperatures[began:done])

    scores, _ = original(processor, get_logits_fn=divided, **inputs)
    return scores, torch.cat(to_sample_from)
