"""Makes SGLang's workers score prompts at the request's temperature, by hooks of SGLang's own plugins.

SGLang's log-probabilities of a prompt ignore the temperature. Only a request that scores its prompt has
log-probabilities of it, and nobody reads the token that such a request samples.
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
    """Adds each request's temperature to a prefill's metadata: 1 if it does not score its prompt."""
    metadata = original(kind, batch)
    if metadata.extend_return_logprob:
        scored = torch.tensor(metadata.extend_logprob_pruned_lens_cpu, device=batch.seq_lens.device) > 0
        metadata.temperature = torch.where(scored, batch.sampling_info.temperatures[:, 0], 1.0)
    return metadata


def at_temperatures(
    original: Callable, processor: object, *, get_logits_fn: Callable, **inputs: object
) -> object:
    """Divides the logits of a prefill by its temperatures, before SGLang computes log-probabilities."""
    temperatures = inputs["logits_metadata"].temperature[inputs["token_to_seq_idx"], None]  # [rows, 1]
    done = 0

    def divided(states: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        nonlocal done
        began = done
        done += len(states)
        return get_logits_fn(states, *args, **options) / temperatures[began:done]

    return original(processor, get_logits_fn=divided, **inputs)
