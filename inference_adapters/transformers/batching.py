"""The library's continuous batching manager, extended to keep the contract.

Every request has its own sampling parameters. Its tokens are delivered through an `Outbox`, labelled with the
version of the weights that sampled them. Weights may change between forward passes. The code runs in the
manager's generation thread unless it says otherwise. It knows no tokenizer and no weight group.

It overrides internals of transformers 5.19, as `batched_request` and `runner` do (`attention` relies on its
cache). Check these internals before changing that version.
"""

import asyncio
import secrets
import time

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
from inference_adapters.transformers.outbox import Outbox
from inference_adapters.transformers.runner import Runner

PAGE_TOKENS = 32  # tokens of a cache block; small because requests are short
FLUSH_S = 0.05  # longest time that sampled tokens wait before the event loop is woken


class Router(OutputRouter):
    """The library's output router, which only delivers failures; tokens leave through the outboxes."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        super().__init__()
        self.loop = loop

    def deliver(self, output: object) -> None: ...

    def deliver_batch(self, outputs: object) -> None: ...

    def fail_and_deliver(self, state: Request, error: Exception) -> None:
        self.loop.call_soon_threadsafe(state.outbox.fail, error)


class Batcher(ContinuousBatchingManager):
    """The batching manager. `version` labels sampled tokens; it changes only while generation is paused."""

    def __init__(self, model: PreTrainedModel, version: int, max_batch_tokens: int, num_blocks: int):
        super().__init__(
            model,
            GenerationConfig(do_sample=True),  # no processors: `Runner` samples
            ContinuousBatchingConfig(
                page_size=PAGE_TOKENS,
                num_blocks=num_blocks,
                max_batch_tokens=max_batch_tokens,
                max_requests_per_batch=max_batch_tokens,
                return_logprobs=True,
                # A new request must not use keys and values of older weights (G3).
                allow_block_sharing=False,
                # If the next batch were already prepared at the pause, its labels would be wrong by one (G5).
                use_async_batching=False,
                use_cuda_graph=False,  # a graph would replay one batch's sampling parameters
                auto_switch_to_flash=False,
                # The library seeds from torch's generator, which starts alike in every process. All servers
                # of a run would draw the same noise.
                seed=secrets.randbits(32),
            ),
        )
        self.version = version
        self.loop = asyncio.get_running_loop()
        self.output_router = Router(self.loop)
        self.changed_outboxes: set[Outbox] = set()  # outboxes whose readers have not been woken
        self._woken = 0.0
        attention_types = group_layers_by_attn_type(model.config.get_text_config())
        attends_per_request = set(attention_types) == {FULL_ATTENTION}
        if attends_per_request:
            model.set_attn_implementation(IMPLEMENTATION)  # the constructor accepts only its own names
        self.batch_processor = self._create_batch_processor()  # the generation thread uses this attribute
        self.batch_processor.model_runner = Runner(self.batch_processor, attends_per_request)

    def submit(self, request: Request) -> None:
        """Queues a request. It is called in the event loop."""
        self.input_queue.put(request)
        self._wake_up_loop.set()
        if refusal := self.background_thread_status.can_accept_new_requests():
            request.outbox.fail(RuntimeError(refusal))

    def fail(self, outbox: Outbox, error: Exception) -> None:
        self.loop.call_soon_threadsafe(outbox.fail, error)

    def load(self) -> tuple[int, int]:
        """Returns the number of running requests and of waiting ones."""
        scheduler = self.batch_processor.scheduler
        return len(scheduler.active_requests), len(scheduler.waiting_requests) + self.input_queue.qsize()

    def _wake_readers(self) -> None:
        """Wakes the readers of new tokens: at once if a request has finished, otherwise every `FLUSH_S`.

        Waking a reader costs more than sampling a token.
        """
        now = time.monotonic()
        if now - self._woken > FLUSH_S or any(outbox.closed for outbox in self.changed_outboxes):
            changed = self.changed_outboxes
            self.changed_outboxes = set()
            self._woken = now
            self.loop.call_soon_threadsafe(lambda: [outbox.changed.set() for outbox in changed])

    def recompute_active(self) -> None:
        """Discards all keys and values, inside a pause.

        Requests in flight then compute their keys and values again.
        """
        scheduler = self.batch_processor.scheduler
        states = list(scheduler.active_requests.values())
        for state in states:
            scheduler.finish_request(state.request_id)
            scheduler.add_waiting_request(state.create_equivalent_initial_request())
        # They came first, so they go ahead of the waiting requests.
        scheduler.waiting_requests_order.rotate(len(states))

    def _generation_loop_body(self, batch_processor: ContinuousBatchProcessor, bootstrapping: bool) -> bool:
        # The library blocks new requests until a running one finishes. If the running ones were cancelled or
        # must recompute, none is left to finish, and the queue would wait forever.
        if not batch_processor.scheduler.active_requests:
            batch_processor.scheduler.block_new_requests = False
        goes_on = super()._generation_loop_body(batch_processor, bootstrapping)
        if self.changed_outboxes:
            self._wake_readers()
        return goes_on

    def _handle_critical_error(
        self, error: Exception, batch_processor: ContinuousBatchProcessor | None
    ) -> None:
        super()._handle_critical_error(error, batch_processor)
        why = f"generation has ended: {type(error).__name__}: {first_line(error)}"
        self.loop.call_soon_threadsafe(end_server, why)
