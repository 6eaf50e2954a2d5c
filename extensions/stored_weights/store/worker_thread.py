"""Runs work in a thread. A caller that is cancelled gets control back when the work has ended."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class StoppedError(Exception):
    """Work that ended early because its caller was cancelled."""


class Stop:
    """Tells work in a thread to end."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        """Raises StoppedError if the caller was cancelled. Work calls this between its steps."""
        if self._event.is_set():
            raise StoppedError


async def in_thread(work: Callable[[Stop], Result]) -> Result:
    """Returns what `work` returns. A cancelled caller waits until the work has ended."""
    stop = Stop()
    future = asyncio.get_running_loop().run_in_executor(None, work, stop)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        future.exception()  # which nobody else asks for
        raise
