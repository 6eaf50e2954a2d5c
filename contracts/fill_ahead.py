"""Fills buffers in a thread, so that whoever fills the other end does not wait while one of them is used."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import torch

AHEAD = 2  # buffers that are full or being filled, beside the one that is used


def filled_ahead(
    fill: Callable[[torch.Tensor], None], buffers: Iterator[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yields each buffer once `fill` has filled it, in order. Raises what `fill` or `buffers` raises.

    Where the iterator is closed before its end, a `fill` that waits is abandoned: its buffer must not be used
    again, and no other follows.
    """
    free = threading.Semaphore(AHEAD + 1)
    full: SimpleQueue[torch.Tensor | None] = SimpleQueue()
    failures: list[BaseException] = []  # taken out to be raised: a frame that its own error holds lives on
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
        except BaseException as error:  # raised again where it is waited for
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
