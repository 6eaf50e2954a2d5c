"""Runs blocking calls that may have to be abandoned: a rendezvous, a gloo wait.

Such a call can block until its own timeout. `asyncio.to_thread` would keep the process alive for it, and a
few of them would occupy its pool. One daemon thread for each call avoids both.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(function: Callable[..., T], *args: object) -> T:
    """Runs `function` in a new daemon thread and returns its result.

    Cancelling the await abandons the thread: it runs to its end, and its result is dropped.
    """
    return await asyncio.wrap_future(daemon_thread(function, *args))


def daemon_thread(function: Callable[..., T], *args: object) -> Future[T]:
    """Starts `function` in a new daemon thread. Returns a future of its result or error."""
    result: Future[T] = Future()

    def run(future: Future[T]) -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function(*args))
        except BaseException as error:  # raised again where the future is awaited
            future.set_exception(error)
        finally:
            del future  # the error's traceback holds this frame, which would keep itself alive

    threading.Thread(target=run, args=(result,), daemon=True, name=function.__name__).start()
    return result
