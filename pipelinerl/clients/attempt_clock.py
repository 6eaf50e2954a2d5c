"""The time limit of one attempt, which is paused during waits that no server causes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress

ReleaseSlot = Callable[[], AbstractContextManager[None]]


class AttemptClock:
    """A time limit that can be paused, by several concurrent waits at once.

    timeout: the attempt's timeout context, already entered.
    """

    def __init__(self, timeout: asyncio.Timeout):
        self._seconds_before = {timeout: 0.0}  # limit -> seconds by which it precedes the attempt's end
        self._timeout = timeout
        self._waits = 0
        self._left_s = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.resume()

    @asynccontextmanager
    async def ending_early(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Raises TimeoutError in the block if it still runs `seconds` before the attempt's time ends."""
        end = self._timeout.when()
        async with asyncio.timeout_at(None if end is None else end - seconds) as limit:
            self._seconds_before[limit] = seconds
            try:
                yield limit
            finally:
                del self._seconds_before[limit]

    def stop(self) -> None:
        self._waits += 1
        if self._waits == 1:
            self._left_s = self._timeout.when() - asyncio.get_running_loop().time()
            self._set(None)

    def resume(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self._set(asyncio.get_running_loop().time() + self._left_s)

    def _set(self, end: float | None) -> None:
        for limit, seconds in self._seconds_before.items():
            with suppress(RuntimeError):  # the attempt has ended, or its time is over
                limit.reschedule(None if end is None else end - seconds)


class JudgementWait:
    """A context in which one attempt waits for judgements, with its clock paused and without a request slot.

    An attempt may wait for several judgements at once.

    release_slot: context in which another attempt may use the attempt's request slot.
    """

    def __init__(self, clock: AttemptClock, release_slot: ReleaseSlot):
        self._clock = clock
        self._release_slot = release_slot
        self._waits = 0
        self._stack = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._waits += 1
        if self._waits == 1:
            self._stack.enter_context(self._release_slot())
            self._stack.enter_context(self._clock.paused())
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self._stack.close()
