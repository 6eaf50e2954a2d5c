"""Calls a function at intervals while a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(every_s: float, act: Callable[[], object], name: str) -> Iterator[None]:
    """Calls `act` every `every_s` seconds, in a thread called `name`, while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            act()

    thread = threading.Thread(target=repeat, daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
