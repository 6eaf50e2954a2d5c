"""Streams for asyncio: one thread appends, in the order of the calls, and the event loop is not blocked.

An append may wait for a server that does not answer, or for space on a disk.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from contracts.records import Record
from pipelinerl.streams.base import StreamWriter

Result = TypeVar("Result")


class StreamThread:
    """A daemon thread for a process's calls to its streams."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Callable[[], object], Future]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="streams").start()

    async def do(self, work: Callable[[], Result]) -> Result:
        """Runs `work` in the thread, and returns its result. `work` runs even if the caller is cancelled."""
        done: Future[Result] = Future()
        self._asked.put((work, done))
        return await asyncio.shield(asyncio.wrap_future(done))

    def _work(self) -> None:
        while True:
            work, done = self._asked.get()
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)


class ThreadWriter:
    """A stream's writer for asyncio. `end` and `protect` must not be used during an `append`."""

    def __init__(self, writer: StreamWriter, thread: StreamThread):
        self._writer = writer
        self._stream_thread = thread

    async def append(self, *records: Record) -> None:
        """Appends the records, with no record of another task between them."""

        def append_all() -> None:
            for record in records:
                self._writer.append(record)

        await self._stream_thread.do(append_all)

    @property
    def end(self) -> int:
        return self._writer.end

    def protect(self, from_offset: int) -> None:
        self._writer.protect(from_offset)
