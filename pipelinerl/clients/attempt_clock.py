"""The time of one attempt, which stands still while it waits for what no server is to blame for."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class AttemptClock:
    """timeout: of the attempt, which may wait for several things at once."""

    def __init__(self, timeout: asyncio.Timeout):
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

    def stop(self) -> None:
        self._waits += 1
        if self._waits == 1:
            self._left_s = self._timeout.when() - asyncio.get_running_loop().time()
            self._set(None)

    def resume(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self._set(asyncio.get_running_loop().time() + self._left_s)

    def _set(self, when: float | None) -> None:
        with suppress(RuntimeError):  # the attempt has ended, or its time is over
            self._timeout.reschedule(when)
