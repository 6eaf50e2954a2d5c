"""The requests of one attempt: each is sent to one server after another until one answers it.

A request that a server did not take, or dropped, is sent to another unchanged, with the same seed. A wrong
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

MOST_BROKEN_CONNECTIONS = 3  # of one request, which then may be what makes servers crash
HELD_SHARE = 0.5  # share of an attempt's time; a server that held a request for longer caused its timeout


class AttemptRequests:
    """The requests of one attempt, and the failures of servers that it has seen.

    avoid: the server that failed last. The next request goes to another, if one is in service.
    out_of_time: whether a completion was cut short because the attempt's time ended.
    """

    def __init__(self, pool: ServerPool, avoid: str | None = None):
        self._pool = pool
        self.avoid = avoid
        self.out_of_time = False
        self._began: float | None = None  # loop time of the first request
        self._unanswered: ServerUnavailableError | None = None  # why the waiting request has no answer
        self._cut_off: list[tuple[str, float]] = []  # servers, and seconds that they held a request

    async def ask(self, send: Callable[[str], Awaitable[Answer]]) -> Answer:
        """Returns the answer of the first server that gives one.

        Raises RequestRefusedError if two servers refuse the request, or the only one does.
        Raises ServerFaultError if an answer is wrong.
        """
        avoid = self.avoid
        refused_by = None
        broken = 0
        while True:
            try:
                answer = await self._ask_one(send, avoid)
            except ServerUnavailableError as error:
                self._unanswered = error
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
            self._unanswered = None
            return answer

    async def _ask_one(self, send: Callable[[str], Awaitable[Answer]], avoid: str | None) -> Answer:
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
                self._unanswered = self._unanswered or ServerUnavailableError("none_free")
            raise
        except RequestError as error:
            error.server = self.avoid = url
            log.warning("%s failed a request: %s", url, error)
            raise

    def cause_of(self, error: Exception) -> Exception:
        """Returns why the attempt ended with `error`.

        Counts a timeout against the server that held the attempt's request.
        """
        if not isinstance(error, TimeoutError) or self._began is None:
            return error
        whole = asyncio.get_running_loop().time() - self._began
        for url, seconds in self._cut_off:
            if seconds >= HELD_SHARE * whole:
                self._pool.count_against(url)
                self.avoid = url
        self._cut_off.clear()
        return self._unanswered or error

    def end_completion(self, error: TimeoutError) -> None:
        """Records that a completion ends with the tokens that it has, because the time is over.

        Raises the server's error instead, if a server did not take the last request.
        """
        cause = self.cause_of(error)
        if isinstance(cause, RequestError) and cause.server:
            raise cause
        self.out_of_time = True
