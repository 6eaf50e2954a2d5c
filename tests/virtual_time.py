"""An event loop whose time a test moves on, so that a slow machine exceeds no limit.

Sockets are real. Timers, limits and sleeps of the loop follow `pass_time` alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from pipelinerl.clients.background import in_background

JUST_AFTER_S = 1e-6


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still until it is moved on."""

    def __init__(self):
        super().__init__()
        self._now = 1000.0
        self._in_threads = 0
        self._clock_resolution = (
            0.0  # no timer is early, which who looks at the time would take for a mistake
        )

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        self._now += seconds + JUST_AFTER_S

    def run_in_executor(self, *arguments: Any) -> asyncio.Future:
        self._in_threads += 1
        result = super().run_in_executor(*arguments)
        result.add_done_callback(self._thread_ended)
        return result

    def _thread_ended(self, _: asyncio.Future) -> None:
        self._in_threads -= 1

    def pass_to_next_timer(self) -> None:
        """Moves on to when something is due, unless anything is ready to run, or runs in a thread."""
        due = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if due and not self._ready and not self._in_threads:
            self._now = max(self._now, min(due) + JUST_AFTER_S)


def in_virtual_time(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine whose time stands still, except in `pass_time` and `time_passes`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def pass_time(seconds: float) -> None:
    """Moves the time of the running loop on."""
    asyncio.get_running_loop().pass_time(seconds)


@asynccontextmanager
async def time_passes(is_still: Callable[[], bool]) -> AsyncIterator[None]:
    """Moves time on where nothing but time can change anything.

    is_still: whether no message is on its way, as where each request is one that a server holds.
    """

    async def move_on() -> None:
        while True:
            if is_still():
                asyncio.get_running_loop().pass_to_next_timer()
            await asyncio.sleep(0)

    async with in_background(move_on()):
        yield


class Traffic:
    """Counts the requests of some sessions, and those that their servers got, to tell what is on its way.

    held: returns how many requests the servers hold until time has passed.
    """

    def __init__(self, held: Callable[[], int]):
        self._held = held
        self._preparing = 0  # requests that wait for a connection
        self._sent = 0
        self._ended = 0  # sent requests that have an answer, or were given up
        self._answers: list[aiohttp.ClientResponse] = []  # whose bodies have not come yet
        self._arrived = 0
        self._finished = 0  # requests that a server has answered, or was told to forget
        self._trace = aiohttp.TraceConfig()
        self._trace.on_request_start.append(self._begin)
        self._trace.on_request_headers_sent.append(self._send)
        self._trace.on_request_end.append(self._receive)
        self._trace.on_request_exception.append(self._end)
        self._trace.freeze()

    @property
    def is_still(self) -> bool:
        """Whether servers hold every request, and nothing is on its way."""
        self._answers = [answer for answer in self._answers if not _is_complete(answer)]
        waiting = self._preparing or self._answers
        on_its_way = waiting or self._sent != self._arrived or self._ended != self._finished
        return not on_its_way and self._arrived - self._finished == self._held()

    def count(self, session: aiohttp.ClientSession) -> None:
        """Counts the requests of this session from here on."""
        session.trace_configs.append(self._trace)

    @web.middleware
    async def of_server(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts the requests that a server gets."""
        self._arrived += 1
        try:
            return await handler(request)
        finally:
            self._finished += 1

    async def _begin(self, session: aiohttp.ClientSession, context: SimpleNamespace, *_: object) -> None:
        self._preparing += 1
        context.is_sent = False

    async def _send(self, session: aiohttp.ClientSession, context: SimpleNamespace, *_: object) -> None:
        self._preparing -= 1
        self._sent += 1
        context.is_sent = True

    async def _receive(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, end: aiohttp.TraceRequestEndParams
    ) -> None:
        self._ended += 1
        self._answers.append(end.response)

    async def _end(self, session: aiohttp.ClientSession, context: SimpleNamespace, *_: object) -> None:
        if context.is_sent:
            self._ended += 1
        else:
            self._preparing -= 1


def _is_complete(answer: aiohttp.ClientResponse) -> bool:
    return answer.closed or answer.content.is_eof()
