"""Sends the requests of one attempt, each to one server after another until one answers. Some may be at once.

A request that a server did not accept, or dropped, is sent to another one with the same seed. An invalid
answer ends the attempt. The module must not know HTTP or prompts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pipelinerl.clients.completions import TOO_LONG
from pipelinerl.clients.faults import (
    ConnectionBrokenError,
    RequestError,
    RequestRefusedError,
    ServerUnavailableError,
)
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.domains.base import Answer

log = logging.getLogger(__name__)

MOST_BROKEN_CONNECTIONS = 3  # connections that a request may break before it is taken as the cause
HELD_SHARE = 0.5  # share of an attempt's time; a server with a request for longer caused the timeout


class AttemptRequests:
    """The requests of one attempt, and the servers' failures during it.

    avoid: URL of the server that failed last. The next request uses another one, if one is in service.
    out_of_time: True if the attempt's time ended a completion early.
    malformed_calls: tool calls that could not be parsed.
    """

    def __init__(self, pool: ServerPool, avoid: str | None = None):
        self._pool = pool
        self.avoid = avoid
        self.out_of_time = False
        self.malformed_calls = 0
        self._began: float | None = None  # loop time of the first request
        self._unanswered: dict[object, ServerUnavailableError] = {}  # last failure of unanswered requests
        self._cut_off: list[tuple[str, float]] = []  # (server, seconds that it had a cancelled request)

    async def ask(self, send: Callable[[str], Awaitable[Answer]]) -> Answer:
        """Returns the first answer of a server.

        Raises RequestRefusedError if two servers, or the only one, refuse the request. Raises
        ServerFaultError if an answer is invalid.
        """
        request = object()
        avoid = self.avoid
        refused_by = None
        broken = 0
        while True:
            try:
                answer = await self._ask_one(request, send, avoid)
            except ServerUnavailableError as error:
                self._unanswered[request] = error
                avoid = error.server or avoid
                broken += isinstance(error, ConnectionBrokenError)
                if broken == MOST_BROKEN_CONNECTIONS:
                    raise
                continue
            except RequestRefusedError as error:
                if str(error) == TOO_LONG or refused_by or not self._pool.has_other(error.server):
                    raise
                avoid = refused_by = error.server
                continue
            if refused_by:  # another server has accepted what this one refused
                self._pool.count_against(refused_by)
            self.avoid = None
            self._unanswered.pop(request, None)
            return answer

    async def _ask_one(
        self, request: object, send: Callable[[str], Awaitable[Answer]], avoid: str | None
    ) -> Answer:
        loop = asyncio.get_running_loop()
        self._began = self._began or loop.time()
        url = None
        try:
            async with self._pool.server(avoid) as url:
                sent = loop.time()
                return await send(url)
        except asyncio.CancelledError:
            if url:
                self._cut_off.append((url, loop.time() - sent))
            else:
                self._unanswered.setdefault(request, ServerUnavailableError("none_free"))
            raise
        except RequestError as error:
            error.server = self.avoid = url
            log.warning("%s failed a request: %s", url, error)
            raise

    def cause_of(self, error: Exception) -> Exception:
        """Returns the cause of the `error` that ended the attempt.

        Counts a timeout against the server that had the attempt's request.
        """
        if not isinstance(error, TimeoutError) or self._began is None:
            return error
        whole = asyncio.get_running_loop().time() - self._began
        for url, seconds in self._cut_off:
            if seconds >= HELD_SHARE * whole:
                self._pool.count_against(url)
                self.avoid = url
        self._cut_off.clear()
        return next(iter(self._unanswered.values()), error)

    def end_completion(self, error: TimeoutError) -> None:
        """Records that the attempt's time ended a completion early.

        Raises the server's error instead, if a server did not accept the last request.
        """
        cause = self.cause_of(error)
        if isinstance(cause, RequestError) and cause.server:
            raise cause
        self.out_of_time = True
