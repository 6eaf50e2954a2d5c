"""Following streams from asyncio: one daemon thread per stream hands its records to the loop."""

import asyncio
import threading

from contracts.records import Record
from pipelinerl.streams.base import StreamReader


def follow(reader: StreamReader, queue: "asyncio.Queue[Record]", from_offset: int = 0) -> None:
    """Put every record of the stream into `queue`, for as long as the process lives."""
    loop = asyncio.get_running_loop()

    def pump() -> None:
        for entry in reader.read(from_offset):
            try:
                loop.call_soon_threadsafe(queue.put_nowait, entry.record)
            except RuntimeError:  # the loop has closed: nobody follows any more
                return

    threading.Thread(target=pump, daemon=True, name="follow").start()
