"""Batches requests by rows, for models whose layers transformers' continuous batching does not have.

These are recurrences and short convolutions, mixed with attention. The interface is that of
`batching.Batcher`. The code runs in its own thread unless it says otherwise.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.continuous_batching.requests import RequestStatus

from contracts.support.messages import first_line
from inference_adapters.ended_engine import end_server
from inference_adapters.transformers.batched_request import Request
from inference_adapters.transformers.head_input import HeadInput
from inference_adapters.transformers.outbox import Readers
from inference_adapters.transformers.row_cache import RowCache
from inference_adapters.transformers.sampling import draw

log = logging.getLogger(__name__)


class RowBatcher(Readers):
    """Runs requests in rows of one cache.

    version: version of the weights; it changes only while generation is paused.
    most_in_a_step: the most requests that run. In a step no prompt is begun after so many tokens of prompts.
    most_tokens: the most tokens that all rows may have together, padding included.
    """

    def __init__(self, model: PreTrainedModel, version: int, most_in_a_step: int, most_tokens: int):
        super().__init__(asyncio.get_running_loop())
        torch.manual_seed(secrets.randbits(63))  # servers of a run must not sample the same tokens
        self.version = version
        self.fatal_error: str | None = None
        self._most_in_a_step = most_in_a_step
        self._most_tokens = most_tokens
        self._cache = RowCache(model)
        self._head = HeadInput(model)
        self._running: list[Request] = []  # in the order of the cache's rows
        self._waiting: deque[Request] = deque()
        self._turn = threading.Lock()  # held by a step, and by who pauses
        self._resumed = threading.Event()
        self._resumed.set()
        self._work = threading.Event()  # set if there may be something to do
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="generate", daemon=True)

    # --- called by other threads ------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, hard_stop: bool) -> None:
        """Ends the thread after the current step."""
        self._stopped = True
        self._work.set()
        self._thread.join()

    def submit(self, request: Request) -> None:
        """Queues a request. Call it in the event loop."""
        self._waiting.append(request)
        self._work.set()
        if self.fatal_error:
            request.outbox.fail(RuntimeError(self.fatal_error))

    def cancel(self, request: Request) -> None:
        """Wakes the thread, which drops requests whose outbox is closed."""
        self._work.set()

    def load(self) -> tuple[int, int]:
        """Returns the numbers of running and of waiting requests."""
        return len(self._running), len(self._waiting)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Holds generation between two steps."""
        self._resumed.clear()
        try:
            with self._turn:
                yield
        finally:
            self._resumed.set()

    def recompute_active(self) -> None:
        """Discards all keys and states. Requests in flight recompute theirs. Call it inside a pause."""
        self._requeue(len(self._running))

    def release(self) -> None:
        """Frees the keys and states. Requests in flight recompute theirs. Call it inside a pause."""
        self.recompute_active()

    def restore(self) -> None:
        """Does nothing: rows are allocated when they are needed."""

    def end_batches(self) -> None:
        """Lets no step run any more. Call it inside a pause, before `stop`."""
        self._stopped = True

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                self._resumed.wait()
                self._work.clear()  # before what it tells of is looked at
                if self._stopped:
                    return
                with self._turn:
                    if self._resumed.is_set() and not self._stopped:
                        self._step()
                    idle = not self._running and not self._waiting
                if idle:
                    self._work.wait()
        except Exception as error:  # of the model or the machine
            self._end(error)

    def _end(self, error: Exception) -> None:
        """Fails all requests, and ends the server."""
        log.exception("generation has ended")
        self.fatal_error = f"{type(error).__name__}: {first_line(error)}"
        for request in [*self._running, *self._waiting]:
            self.fail(request.outbox, RuntimeError(self.fatal_error))
        self.loop.call_soon_threadsafe(end_server, f"generation has ended: {self.fatal_error}")

    def _step(self) -> None:
        """Samples a token of each running request, then the first token of waiting ones."""
        self._drop_ended()
        self._make_room()
        if self._running:
            logits = self._cache.decode([request.generated_tokens[-1] for request in self._running])
            self._deliver(self._running, logits)
        self._admit()
        if self.changed_outboxes:
            self.wake_readers()

    def _admit(self) -> None:
        """Prefills waiting requests, equal prompts together, until the step has enough tokens."""
        read = 0
        while self._waiting and self._resumed.is_set() and read < self._most_in_a_step:
            prompt = self._waiting[0].initial_tokens
            most = min(self._most_in_a_step, self._most_tokens // max(self._cache.width, len(prompt)))
            free = max(most, 1) - len(self._running)
            if free < 1:
                return
            equal = self._next_equal(free)
            if equal:
                self._running += equal
                self._deliver(equal, self._cache.prefill(prompt, len(equal)))
                read += len(prompt)

    def _next_equal(self, most: int) -> list[Request]:
        """Takes the first waiting request and those with its prompt, `most` at most. Drops aborted ones."""
        prompt = self._waiting[0].initial_tokens
        equal: list[Request] = []
        while self._waiting and len(equal) < most and self._waiting[0].initial_tokens == prompt:
            request = self._waiting.popleft()
            if not request.outbox.closed:
                request.status = RequestStatus.DECODING
                equal.append(request)
        return equal

    def _deliver(self, requests: list[Request], logits: Tensor) -> None:
        states = self._head.states[:, -1].expand(len(requests), -1)
        token_ids, logprobs = draw(logits, states, requests)
        for request, token_id, logprob in zip(requests, token_ids.tolist(), logprobs.tolist(), strict=True):
            request.update_and_check_completion(token_id, logprob)

    def _drop_ended(self) -> None:
        stay = [
            i
            for i, request in enumerate(self._running)
            if request.status != RequestStatus.FINISHED and not request.outbox.closed
        ]
        if len(stay) < len(self._running):
            self._running = [self._running[i] for i in stay]
            self._cache.keep(stay)

    def _make_room(self) -> None:
        """Lets the latest requests wait again if the rows have become too long."""
        most = max(1, self._most_tokens // (self._cache.width + 1))
        self._requeue(max(0, len(self._running) - most))

    def _requeue(self, count: int) -> None:
        """Puts the latest `count` running requests before the waiting ones."""
        if count:
            stay = len(self._running) - count
            again = [request.create_equivalent_initial_request() for request in self._running[stay:]]
            self._waiting.extendleft(reversed(again))
            self._running = self._running[:stay]
            self._cache.keep([*range(stay)])
