"""The library's continuous batching manager, extended to keep the contract.

Every request carries its own sampling parameters. Its tokens leave through an `Outbox`, labelled with the
weights that sampled them. Weights may change between forward passes. The code runs in the manager's
generation thread unless it says otherwise. It knows no tokenizer and no weight group.

It overrides internals of transformers 5.19 (`attention` relies on its cache); read it before that version
changes.
"""

import asyncio
import math
import secrets
import time
from dataclasses import dataclass

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.cache import group_layers_by_attn_type
from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchProcessor,
    OutputRouter,
)
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.utils import find_num_key_value_heads

from contracts.errors import ContractError, ErrorCode
from contracts.inference import SamplingParameters
from contracts.support.messages import first_line
from inference_adapters.ended_engine import end_server
from inference_adapters.transformers.attention import IMPLEMENTATION, plan_groups
from inference_adapters.transformers.outbox import Outbox
from inference_adapters.transformers.sampling import likeliest, sample

PAGE_TOKENS = 32  # tokens of a cache block; small because requests are short
FLUSH_S = 0.05  # longest time that sampled tokens wait until the event loop is woken


@dataclass(kw_only=True, repr=False, eq=False)
class Request(RequestState):
    """One request as the library schedules it."""

    sampling: SamplingParameters
    outbox: Outbox
    batcher: "Batcher"
    generator: torch.Generator | None = None  # the generator of a request with a seed
    likeliest: list[tuple[int, float]] | None = None  # of the last forward pass, if they were asked for

    def update_and_check_completion(self, token_id: int, logprob: float | None) -> bool:
        """Takes a sampled token and returns whether the request has ended.

        The library calls it right after the forward pass that sampled the token. Weights change only before
        the next pass, so the current version is the one that sampled it.
        """
        if self.outbox.closed:  # aborted meanwhile, or its client has gone
            self.status = RequestStatus.FINISHED
            return True
        if math.isnan(logprob):
            self.status = RequestStatus.FINISHED
            self.batcher.fail(self.outbox, _undefined(self.sampling))
            return True
        finished = super().update_and_check_completion(token_id, logprob)
        reason = None
        if finished:
            reason = "stop" if token_id in self._eos_token_ids else "length"
        self.outbox.append(token_id, logprob, self.batcher.version, reason, self.likeliest)
        self.batcher.changed_outboxes.add(self.outbox)
        return finished

    def create_equivalent_initial_request(self) -> "Request":
        """Returns the rest of this request, with its tokens so far as part of the prompt.

        The library calls it when the cache is full.
        """
        return Request(
            request_id=self.request_id,
            initial_tokens=self.initial_tokens + self.generated_tokens,
            max_new_tokens=self.max_new_tokens - len(self.generated_tokens),
            eos_token_id=self.eos_token_id,
            sampling=self.sampling,
            outbox=self.outbox,
            batcher=self.batcher,
            generator=self.generator,
        )


def _undefined(sampling: SamplingParameters) -> ContractError:
    return ContractError(
        ErrorCode.ENGINE_FAILED,
        "the model's probabilities of the next token are not finite: its logits are not, or temperature "
        f"{sampling.temperature} is too small for them",
    )


class Router(OutputRouter):
    """The library's output router, which only delivers failures; tokens leave through the outboxes."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        super().__init__()
        self.loop = loop

    def deliver(self, output: object) -> None: ...

    def deliver_batch(self, outputs: object) -> None: ...

    def fail_and_deliver(self, state: Request, error: Exception) -> None:
        self.loop.call_soon_threadsafe(state.outbox.fail, error)


class Runner(ModelRunner):
    """Runs one forward pass: attention request by request, sampling row by row."""

    def __init__(self, processor: ContinuousBatchProcessor, attends_per_request: bool):
        super().__init__(
            processor.logit_processor,
            processor.cb_config,
            processor.inputs_and_outputs,
            processor.cache,
            processor.do_sample,
            processor.return_logprobs,
        )
        self.attends_per_request = attends_per_request
        config = processor.config
        self.heads_per_key = config.num_attention_heads // find_num_key_value_heads(config)

    def _forward_process_and_sample(self, model, batch_data, *outputs) -> None:
        if self.attends_per_request:
            read = batch_data["read_index"][0]
            write = batch_data["write_index"][0]
            batch_data["groups"], slots = plan_groups(
                batch_data["cu_seq_lens_q"],
                batch_data["cu_seq_lens_k"][FULL_ATTENTION],
                read if len(read) else write,  # nothing is cached yet, so all tokens are new
                self.heads_per_key,
                model.dtype,
            )
            batch_data["read_index"] = [slots]
        super()._forward_process_and_sample(model, batch_data, *outputs)

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        batch = self.inputs_and_outputs.requests_in_batch
        requests = [future.state for future in batch if future.has_new_token]
        n = len(requests)  # the other rows belong to prompts that are not read to their end
        if n == 0:
            return
        token_ids, logprobs = sample(
            scores[0, :n], [r.sampling for r in requests], [r.generator for r in requests]
        )
        asking = [row for row, request in enumerate(requests) if request.sampling.top_logprobs]
        if asking:
            found = likeliest(scores[0, asking], [requests[row].sampling for row in asking])
            for row, tokens in zip(asking, found, strict=True):
                requests[row].likeliest = tokens
        output_ids[0, :n] = token_ids
        output_ids[1, :n] = logprobs.view(torch.int32)  # the library's row for them is int32


class Batcher(ContinuousBatchingManager):
    """The batching manager. `version` labels what is sampled; it changes only while generation is paused."""

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
                # Keys and values of older weights must not serve a new request (G3).
                allow_block_sharing=False,
                # With a batch in the making at the pause, labels would slip by one (G5).
                use_async_batching=False,
                use_cuda_graph=False,  # a graph would replay one batch's sampling parameters
                auto_switch_to_flash=False,
                # The library seeds from torch's generator, which starts alike in every process: all
                # servers of a run would draw the same noise.
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
        self.batch_processor = self._create_batch_processor()  # the generation thread will find it there
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
        """Wakes the readers of new tokens: at once if a request has finished, else every `FLUSH_S`.

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

        Requests in flight compute those of their tokens again.
        """
        scheduler = self.batch_processor.scheduler
        states = list(scheduler.active_requests.values())
        for state in states:
            scheduler.finish_request(state.request_id)
            scheduler.add_waiting_request(state.create_equivalent_initial_request())
        # They came first, so they go before those that wait.
        scheduler.waiting_requests_order.rotate(len(states))

    def _generation_loop_body(self, batch_processor: ContinuousBatchProcessor, bootstrapping: bool) -> bool:
        # The library blocks new requests until a running one finishes; when the running ones were
        # cancelled or made to recompute, none is left to do so, and the queue would wait forever.
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
