"""transformers' continuous batching manager, extended for the contract.

Every request has its own sampling parameters. Its tokens are delivered through an `Outbox`, with the version
of the weights that sampled them. Weights may change between forward passes. The code runs in the manager's
generation thread unless it says otherwise. This module must not depend on tokenizers or weight groups.

It overrides internals of transformers 5.19, as `batched_request` and `runner` do, and `attention` depends on
its cache. Check these internals before changing that version.
"""

import asyncio
import secrets

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.cache import group_layers_by_attn_type
from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchProcessor,
    OutputRouter,
)

from contracts.support.messages import first_line
from inference_adapters.ended_engine import end_server
from inference_adapters.transformers.attention import IMPLEMENTATION
from inference_adapters.transformers.batched_request import Request
from inference_adapters.transformers.head_input import HeadInput
from inference_adapters.transformers.outbox import Readers
from inference_adapters.transformers.runner import Runner

PAGE_TOKENS = 32  # tokens of a cache block; small because requests are short
SHARED_TOKENS = 16  # a shorter prompt is computed for each request: copying it costs as much


class Router(OutputRouter):
    """The manager's output router. It delivers only failures, because outboxes deliver tokens."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        super().__init__()
        self.loop = loop

    def deliver(self, output: object) -> None: ...

    def deliver_batch(self, outputs: object) -> None: ...

    def fail_and_deliver(self, state: Request, error: Exception) -> None:
        for failed in (state, *state.siblings):
            self.loop.call_soon_threadsafe(failed.outbox.fail, error)


def _has_sinks(model: PreTrainedModel) -> bool:
    return any(hasattr(module, "sinks") for module in model.modules())


class Batcher(ContinuousBatchingManager, Readers):
    """The batching manager. `version`: version of the weights; it changes only while generation is paused."""

    def __init__(self, model: PreTrainedModel, version: int, max_batch_tokens: int, num_blocks: int):
        ContinuousBatchingManager.__init__(
            self,
            model,
            GenerationConfig(do_sample=True),  # no processors: `Runner` samples
            ContinuousBatchingConfig(
                page_size=PAGE_TOKENS,
                num_blocks=num_blocks,
                max_batch_tokens=max_batch_tokens,
                max_requests_per_batch=max_batch_tokens,
                return_logprobs=True,
                # A new request must not use keys and values of older weights: guarantee G3.
                allow_block_sharing=False,
                # A batch that is prepared before a pause would have a version that is too old: guarantee G5.
                use_async_batching=False,
                use_cuda_graph=False,  # a graph would replay one batch's sampling parameters
                auto_switch_to_flash=False,
                # The default is torch's initial seed, equal in every process: all servers of a run would
                # sample the same tokens.
                seed=secrets.randbits(32),
            ),
        )
        self.version = version
        self._gathered: dict[tuple[int, ...], Request] = {}  # by prompt, in this iteration of the event loop
        Readers.__init__(self, asyncio.get_running_loop())
        self.output_router = Router(self.loop)
        attention_types = group_layers_by_attn_type(model.config.get_text_config())
        attends_per_request = set(attention_types) == {FULL_ATTENTION} and not _has_sinks(model)
        if attends_per_request:
            model.set_attn_implementation(IMPLEMENTATION)  # the constructor accepts only built-in names
        self.batch_processor = self._create_batch_processor()  # the generation thread reads this attribute
        self.batch_processor.model_runner = Runner(
            self.batch_processor, HeadInput(model), attends_per_request
        )

    def submit(self, request: Request) -> None:
        """Queues a request. Call it in the event loop.

        The choices of a request come in the same iteration of the loop. Requests of one prompt that do are
        siblings of the first of them, and compute the prompt once.
        """
        prompt = tuple(request.initial_tokens)
        if len(prompt) < SHARED_TOKENS:
            self._queue(request)
        elif first := self._gathered.get(prompt):
            first.add_sibling(request)
        else:
            self._gathered[prompt] = request
            self.loop.call_soon(lambda: self._queue(self._gathered.pop(prompt)))

    def _queue(self, request: Request) -> None:
        self.input_queue.put(request)
        self._wake_up_loop.set()
        if refusal := self.background_thread_status.can_accept_new_requests():
            for refused in (request, *request.siblings):
                refused.outbox.fail(RuntimeError(refusal))

    def cancel(self, request: Request) -> None:
        """Removes a request whose outbox is closed. One that others wait for ends with its first token."""
        if not request.num_children:
            self.cancel_request(request.request_id)

    @property
    def fatal_error(self) -> object:
        return self.background_thread_status.fatal_error

    def load(self) -> tuple[int, int]:
        """Returns the numbers of running and of waiting requests."""
        scheduler = self.batch_processor.scheduler
        running = list(scheduler.active_requests.values())
        waiting = list(scheduler.waiting_requests.values())
        siblings = sum(len(request.siblings) for request in running + waiting)
        return len(running), len(waiting) + siblings + self.input_queue.qsize()

    def recompute_active(self) -> None:
        """Discards all keys and values. Requests in flight recompute theirs. Call it inside a pause."""
        scheduler = self.batch_processor.scheduler
        states = list(scheduler.active_requests.values())
        for state in states:
            scheduler.finish_request(state.request_id)
            scheduler.add_waiting_request(state.create_equivalent_initial_request())
        scheduler.waiting_requests_order.rotate(len(states))  # before the requests that were waiting

    def release(self) -> None:
        """Frees the keys and values. Requests in flight recompute theirs. Call it inside a pause."""
        self.recompute_active()
        self.batch_processor.cache.cache_tensor.untyped_storage().resize_(0)

    def restore(self) -> None:
        """Allocates the keys and values that `release` freed, if it did. Call it inside that pause."""
        cache = self.batch_processor.cache
        if cache.cache_tensor.untyped_storage().size():
            return
        size = cache.cache_tensor.numel()
        cache.cache_tensor = torch.zeros(size, dtype=torch.uint8, device=cache.device)
        data = size - 2 * cache.bytes_per_sector  # without the two sectors that are never allocated
        for allocator in cache.cache_allocators.values():
            allocator.register_cache_tensor(cache.bytes_per_sector, data, cache.cache_tensor, cache.pool)
        cache.reset()  # registering has forgotten the blocks that were free

    def end_batches(self) -> None:
        """Lets no batch run any more. Call it inside a pause, before `stop`."""
        self.batch_processor.scheduler.schedule_batch = lambda *limits: ([], False, 0, 0)

    def _generation_loop_body(self, batch_processor: ContinuousBatchProcessor, bootstrapping: bool) -> bool:
        # transformers blocks new requests until a running one finishes. Without this, the queue would wait
        # forever after all running requests were cancelled or recomputed.
        if not batch_processor.scheduler.active_requests:
            batch_processor.scheduler.block_new_requests = False
        continues = super()._generation_loop_body(batch_processor, bootstrapping)
        if self.changed_outboxes:
            self.wake_readers()
        return continues

    def _handle_critical_error(
        self, error: Exception, batch_processor: ContinuousBatchProcessor | None
    ) -> None:
        super()._handle_critical_error(error, batch_processor)
        why = f"generation has ended: {type(error).__name__}: {first_line(error)}"
        self.loop.call_soon_threadsafe(end_server, why)
