"""Prefetches buffers in a thread, so that the sender does not wait while the receiver uses a buffer."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import torch

AHEAD = 2  # buffers that are full or being filled, in addition to the one in use


def filled_ahead(
    fill: Callable[[torch.Tensor], None], buffers: Iterator[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yields each buffer, in order, after `fill` has filled it. Errors of `fill` and `buffers` propagate.

    If the iterator is closed early, a `fill` in progress is abandoned: do not reuse its buffer. `fill` is not
    called again.
    """
    free = threading.Semaphore(AHEAD + 1)
    full: SimpleQueue[torch.Tensor | None] = SimpleQueue()
    failures: list[BaseException] = []  # emptied on raising: an error in its own frame is a reference cycle
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
