"""An attempt's clock, which stands still while it waits for a judgement or for a server to come."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

LeavePlace = Callable[[], AbstractContextManager[None]]


class Clock:
    """One attempt's. It may wait for several things at once.

    timeout: of the attempt, once it has begun.
    """

    def __init__(self) -> None:
        self.timeout: asyncio.Timeout | None = None
        self._waits = 0
        self._left_s = 0.0

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        self._waits += 1
        if self._waits == 1:
            self._left_s = self.timeout.when() - asyncio.get_running_loop().time()
            self.timeout.reschedule(None)
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                with suppress(RuntimeError):  # the attempt has ended without this wait
                    self.timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)


class Pause:
    """An attempt's wait for judgements: it holds no place on a server, and its time stands still.

    leave_place: gives the place to another attempt while it is entered.
    """

    def __init__(self, clock: Clock, leave_place: LeavePlace):
        self._clock = clock
        self._leave_place = leave_place
        self._waits = 0
        self._left = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._waits += 1
        if self._waits == 1:
            self._left.enter_context(self._leave_place())
            self._left.enter_context(self._clock.standing_still())
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self._left.close()
