"""Runs blocking calls that may be abandoned, such as a rendezvous, each in a daemon thread.

`asyncio.to_thread` would keep the process alive until such a call ends, and a few calls would fill its pool.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(function: Callable[..., T], *args: object) -> T:
    """Runs `function` in a new daemon thread and returns its result.

    If the await is cancelled, the thread continues and its result is discarded.
    """
    return await asyncio.wrap_future(daemon_thread(function, *args))


def daemon_thread(function: Callable[..., T], *args: object) -> Future[T]:
    """Starts `function` in a new daemon thread. Returns a future of its result."""
    result: Future[T] = Future()

    def run(future: Future[T]) -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function(*args))
        except BaseException as error:  # raised again where the future is awaited
            future.set_exception(error)
        finally:
            del future  # breaks the reference cycle of future, error, traceback and this frame

    threading.Thread(target=run, args=(result,), daemon=True, name=function.__name__).start()
    return result
