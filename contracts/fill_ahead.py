"""Fills buffers in a thread, so that the sender does not wait while a filled buffer is in use."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import torch

AHEAD = 2  # buffers that are full or being filled, in addition to the one in use


def filled_ahead(
    fill: Callable[[torch.Tensor], None], buffers: Iterator[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yields each buffer once `fill` has filled it, in order. Raises what `fill` or `buffers` raises.

    If the iterator is closed early, a `fill` that is waiting is abandoned. Its buffer must not be used again,
    and `fill` is not called again.
    """
    free = threading.Semaphore(AHEAD + 1)
    full: SimpleQueue[torch.Tensor | None] = SimpleQueue()
    failures: list[BaseException] = []  # emptied on raising: an error in its own frame keeps that alive
    is_closed = threading.Event()

    def run() -> None:
        try:
            for buffer in buffers:
                free.acquire()
                if is_closed.is_set():
                    return
                fill(buffer)
                full.put(buffer)
                del buffer
        except BaseException as error:  # raised again in the consumer's thread
            failures.append(error)
        finally:
            full.put(None)

    threading.Thread(target=run, daemon=True, name="receive").start()
    try:
        while (buffer := full.get()) is not None:
            yield buffer
            del buffer
            free.release()
        if failures:
            raise failures.pop()
    finally:
        is_closed.set()
        free.release()
