"""An event loop in a thread, so that hashing and file writing do not delay the server's loop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A daemon thread that runs an event loop. Its methods are called in the server's event loop."""

    def __init__(self, name: str):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine in the thread and returns its result.

        If the await is cancelled, it cancels the coroutine and waits for its end.
        """
        here = asyncio.get_running_loop()
        ended = here.create_future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._loop.create_task(work())
            tasks.append(task)
            task.add_done_callback(lambda task: here.call_soon_threadsafe(ended.set_result, task))

        self._loop.call_soon_threadsafe(start)
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            while not ended.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([ended])
            raise
        return tasks[0].result()

    async def close(self) -> None:
        """Stops the loop and the thread. No coroutine may be running."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
