"""Following streams from asyncio: one daemon thread per stream hands its records to the loop."""

import asyncio
import contextlib
import threading

from contracts.records import Record
from pipelinerl.streams.base import StreamReader


def follow(reader: StreamReader, queue: "asyncio.Queue[Record | BaseException]") -> None:
    """Put every record of the stream into `queue`, for as long as the process lives; and what ends it."""
    loop = asyncio.get_running_loop()

    def put(item: Record | BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody follows any more
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def pump() -> None:
        try:
            for entry in reader.read():
                put(entry.record)
        except Exception as error:
            put(error)

    threading.Thread(target=pump, daemon=True, name="follow").start()
