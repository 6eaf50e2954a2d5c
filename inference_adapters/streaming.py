"""Merges the completions of a request into one stream, and cancels them if the client disconnects.

`generation_routes` uses it. This module does not depend on the format of responses.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from contracts.errors import ContractError, ErrorCode
from contracts.inference import TokenDelta
from inference_adapters.held_requests import HeldRequests

log = logging.getLogger(__name__)


async def merged(
    sources: list[AsyncIterator[TokenDelta]], held: HeldRequests
) -> AsyncIterator[tuple[int, TokenDelta]]:
    """Yields (index of the source, its next tokens) in the order of arrival.

    Closing the iterator cancels the sources. Raises ContractError if requests have been `held` too long.
    """
    arrived: asyncio.Queue[tuple[int, TokenDelta] | ContractError] = asyncio.Queue()

    async def pump(index: int, source: AsyncIterator[TokenDelta]) -> None:
        try:
            async with aclosing(source):
                async for delta in source:
                    arrived.put_nowait((index, delta))
        except ContractError as error:  # raised again by the reader of the queue
            arrived.put_nowait(error)
        except Exception as error:
            log.exception("the engine failed in a request")
            arrived.put_nowait(ContractError(ErrorCode.ENGINE_FAILED, repr(error)))

    async def fail_at_timeout() -> None:
        await held.timed_out.wait()
        arrived.put_nowait(held.error())

    tasks = [asyncio.create_task(pump(index, source)) for index, source in enumerate(sources)]
    tasks.append(asyncio.create_task(fail_at_timeout()))
    try:
        unfinished = len(sources)
        while unfinished:
            item = await arrived.get()
            if isinstance(item, ContractError):
                raise item
            unfinished -= item[1].finish_reason is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of `work`, or None if the client disconnects first, which cancels `work`."""
    return await until(_disconnected(receive), work)


async def until(end: Coroutine[Any, Any, Any], work: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of `work`, or None if `end` returns first, which cancels `work`."""
    ended = asyncio.create_task(end)
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        ended.cancel()
        task.cancel()
        await asyncio.wait([task])


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class PartsStream(StreamingResponse):
    """A response that is sent in parts. At its end or a disconnect, it closes `parts`, then `stack`."""

    def __init__(self, parts: AsyncIterator[str | bytes], stack: ExitStack):
        super().__init__(parts, media_type=self.media_type)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stack:
            async with aclosing(self.body_iterator):
                await until_disconnect(receive, self.stream_response(send))


class EventStream(PartsStream):
    """A response of server-sent events."""

    media_type = "text/event-stream"


class LineStream(PartsStream):
    """A response of JSON values, one per line."""

    media_type = "application/x-ndjson"
