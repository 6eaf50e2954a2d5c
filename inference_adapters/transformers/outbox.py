"""Passes the sampled tokens of one request from the generation thread to the event loop.

An outbox outlives the library's request state, which is replaced whenever a request is recomputed. So no
token is delivered twice, and none is lost.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal

from contracts.inference import TokenDelta

FinishReason = Literal["stop", "length", "abort"]


class Outbox:
    """The sampled tokens of one request.

    The generation thread appends; everything else happens in the event loop. The code that appends must also
    set `changed`, in the event loop, to wake the reader.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.likeliest: list[list[tuple[int, float]]] = []  # at each position, if requested
        self.versions: list[int] = []
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
        """Adds a sampled token, with the most likely tokens at its position if they were requested."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if likeliest is not None:
            self.likeliest.append(likeliest)
        self.versions.append(version)  # last, because the reader counts these
        if reason is not None:  # otherwise it would undo an abort at this moment
            self.finish_reason = reason

    def abort(self) -> None:
        self.finish_reason = self.finish_reason or "abort"
        self.changed.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.changed.set()

    async def deltas(self) -> AsyncGenerator[TokenDelta, None]:
        """Yields the tokens as they are appended, until the request ends. Raises its error if it failed."""
        sent = 0
        while True:
            await self.changed.wait()
            self.changed.clear()
            if self.error is not None:
                raise self.error
            reason = self.finish_reason  # read before the tokens: they are complete once it is set
            end = len(self.versions)
            yield TokenDelta(
                self.token_ids[sent:end],
                self.logprobs[sent:end],
                self.versions[sent:end],
                reason,
                self.likeliest[sent:end],
            )
            if reason is not None:
                return
            sent = end
