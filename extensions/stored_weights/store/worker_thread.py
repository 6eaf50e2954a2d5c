"""Runs work in a thread. If the caller is cancelled, it waits until the work has stopped."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class StoppedError(Exception):
    """Raised in work whose caller was cancelled."""


class Stop:
    """A signal to work in a thread to stop."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        """Raises StoppedError if the caller was cancelled. Call it between the steps of the work."""
        if self._event.is_set():
            raise StoppedError


async def in_thread(work: Callable[[Stop], Result]) -> Result:
    """Returns the result of `work`. If it is cancelled, waits until the work has stopped."""
    stop = Stop()
    future = asyncio.get_running_loop().run_in_executor(None, work, stop)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        future.exception()  # marks the exception as retrieved
        raise
