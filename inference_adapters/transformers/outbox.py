"""Passes the sampled tokens of one request from the generation thread to the event loop.

A request keeps its outbox when transformers replaces its state to recompute it. So each token is delivered
exactly once.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Literal

import torch
from torch import Tensor

from contracts.commitments import commit
from contracts.inference import TokenDelta

FinishReason = Literal["stop", "length", "abort"]
FLUSH_S = 0.05  # maximum delay until the event loop is woken for sampled tokens


class Outbox:
    """The sampled tokens of one request.

    The generation thread calls `append`; all other methods run in the event loop. After `append`, set
    `changed` in the event loop to wake the reader.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.likeliest: list[list[tuple[int, float]]] = []  # at each position, if requested
        self.versions: list[int] = []
        self.states: list[Tensor] = []  # [H] bfloat16, of each token, if commitments are requested
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def append(
        self,
        token_id: int,
        logprob: float,
        version: int,
        reason: FinishReason | None,
        likeliest: list[tuple[int, float]] | None = None,
    ) -> None:
        """Adds a sampled token. `likeliest`: the most likely tokens at its position, if requested."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if likeliest is not None:
            self.likeliest.append(likeliest)
        self.versions.append(version)  # last, because the reader counts these
        if reason is not None:  # None must not overwrite a concurrent abort
            self.finish_reason = reason

    def abort(self) -> None:
        self.finish_reason = self.finish_reason or "abort"
        self.changed.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.changed.set()

    async def deltas(self) -> AsyncGenerator[TokenDelta, None]:
        """Yields the appended tokens until the request ends. Raises its error if it fails."""
        sent = 0
        while True:
            await self.changed.wait()
            self.changed.clear()
            if self.error is not None:
                raise self.error
            reason = self.finish_reason  # read before the tokens, which are complete when it is set
            end = len(self.versions)
            yield TokenDelta(
                self.token_ids[sent:end],
                self.logprobs[sent:end],
                self.versions[sent:end],
                reason,
                self.likeliest[sent:end],
                None if reason is None else await self._commitments(end),
            )
            if reason is not None:
                return
            sent = end

    async def _commitments(self, tokens: int) -> bytes | None:
        """Returns the commitments to the first tokens, or None if they are not requested."""
        if not self.states or not tokens:
            return None
        rows = torch.stack(self.states[:tokens]).float().numpy()
        return await asyncio.to_thread(commit, rows)


class Readers:
    """The readers of the outboxes of a batcher, in the event loop. The batcher's thread calls the methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.changed_outboxes: set[Outbox] = set()  # outboxes with tokens whose readers are not woken yet
        self._woken = 0.0

    def fail(self, outbox: Outbox, error: Exception) -> None:
        self.loop.call_soon_threadsafe(outbox.fail, error)

    def wake_readers(self) -> None:
        """Wakes the readers of new tokens at once if a request has finished, otherwise every `FLUSH_S`.

        Waking a reader takes longer than sampling a token.
        """
        now = time.monotonic()
        if now - self._woken > FLUSH_S or any(outbox.closed for outbox in self.changed_outboxes):
            changed = self.changed_outboxes
            self.changed_outboxes = set()
            self._woken = now
            self.loop.call_soon_threadsafe(lambda: [outbox.changed.set() for outbox in changed])
