"""An attempt's wait for a judgement: it holds no place on a server, and its time stands still."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

LeavePlace = Callable[[], AbstractContextManager[None]]


class Pause:
    """One attempt's. It may wait for several judgements at once.

    timeout: of the attempt.
    leave_place: gives the place to another attempt while it is entered.
    """

    def __init__(self, timeout: asyncio.Timeout, leave_place: LeavePlace):
        self._timeout = timeout
        self._leave_place = leave_place
        self._waits = 0
        self._left = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._waits += 1
        if self._waits == 1:
            self._left.enter_context(self._leave_place())
            self._left.enter_context(_stopped(self._timeout))
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self._left.close()


@contextmanager
def _stopped(timeout: asyncio.Timeout) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    left_s = timeout.when() - loop.time()
    timeout.reschedule(None)
    try:
        yield
    finally:
        with suppress(RuntimeError):  # the attempt has ended without this wait
            timeout.reschedule(loop.time() + left_s)
