"""An event loop whose time a test moves on, so that a slow machine exceeds no limit.

Sockets are real. Timers, limits and sleeps of the loop follow `pass_time` alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from pipelinerl.clients.background import in_background

JUST_AFTER_S = 1e-6


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still until it is moved on."""

    def __init__(self):
        super().__init__()
        self._now = 1000.0
        self._clock_resolution = (
            0.0  # no timer is early, which who looks at the time would take for a mistake
        )

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        self._now += seconds + JUST_AFTER_S

    def pass_to_next_timer(self) -> None:
        """Moves on to when something is due, unless anything is ready to run."""
        due = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if due and not self._ready:
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
    """Counts the requests of a session that have no answer yet."""

    def __init__(self):
        self.under_way = 0
        self.trace = aiohttp.TraceConfig()
        self.trace.on_request_start.append(self._begin)
        self.trace.on_request_end.append(self._end)
        self.trace.on_request_exception.append(self._end)

    async def _begin(self, *_: object) -> None:
        self.under_way += 1

    async def _end(self, *_: object) -> None:
        self.under_way -= 1
