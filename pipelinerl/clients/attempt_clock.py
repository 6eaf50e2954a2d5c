"""The time limit of one attempt, which pauses during waits that are no server's fault."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress


class AttemptClock:
    """A time limit that can be paused. The attempt may be in several such waits at once.

    timeout: the attempt's own timeout, already entered.
    """

    def __init__(self, timeout: asyncio.Timeout):
        self._before_the_end = {timeout: 0.0}  # for each limit, how many seconds early it ends
        self._timeout = timeout
        self._waits = 0
        self._left_s = 0.0

    @contextmanager
    def standing_still(self) -> Iterator[None]:
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
            self._before_the_end[limit] = seconds
            try:
                yield limit
            finally:
                del self._before_the_end[limit]

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
        for limit, seconds in self._before_the_end.items():
            with suppress(RuntimeError):  # the attempt has ended, or its time is over
                limit.reschedule(None if end is None else end - seconds)
