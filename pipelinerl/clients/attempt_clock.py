"""The time limit of one attempt, which is paused during waits that no server causes, and its request slot."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)

ReleaseSlot = Callable[[], AbstractContextManager[None]]
SlotWhileAway = Callable[[], AbstractAsyncContextManager[None]]


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


class AttemptPresence:
    """The request slot of one attempt, which it releases while it is away, with its clock paused.

    An attempt is away while it waits for a judgement, or for a program. It may do so several times at once.

    release: context in which another attempt may use the slot.
    while_away: context of a request that an attempt makes while it is away.
    acquire: waits for a slot, after the attempt was away.
    """

    def __init__(
        self,
        clock: AttemptClock,
        release: ReleaseSlot,
        while_away: SlotWhileAway,
        acquire: Callable[[], Awaitable[None]],
    ):
        self._clock = clock
        self._release = release
        self._while_away = while_away
        self._acquire = acquire
        self._waits = 0
        self._requests = 0  # made while it is away
        self._stack = ExitStack()
        self._is_released = False

    @contextmanager
    def away(self) -> Iterator[None]:
        self._waits += 1
        if self._waits == 1:
            self._is_released = True
            self._stack.enter_context(self._release())
            self._stack.enter_context(self._clock.paused())
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self._stack.close()

    @asynccontextmanager
    async def requesting(self) -> AsyncIterator[None]:
        """The context of a request, which waits for a slot if the attempt has none."""
        if self._waits:
            async with self._while_away():
                self._requests += 1
                if self._requests == 1:
                    self._clock.resume()
                try:
                    yield
                finally:
                    self._requests -= 1
                    if self._requests == 0:
                        self._clock.stop()
            return
        if self._is_released:
            self._is_released = False
            await self._acquire()
        yield
