"""A clock that a test moves on, in the place of the module `time`."""

import threading
import time
from collections.abc import Callable


class Clock:
    """The time is `now`; the test's thread moves it on where it sleeps. `sleeps`: how often that was."""

    def __init__(self, on_sleep: Callable[[], object] = lambda: None):
        self.now = 1000.0
        self.sleeps = 0
        self._on_sleep = on_sleep
        self._thread = threading.get_ident()

    def __call__(self) -> float:
        return self.now

    monotonic = time = __call__

    def sleep(self, seconds: float) -> None:
        if threading.get_ident() != self._thread:  # one that another test has left
            time.sleep(seconds)
            return
        self.now += seconds
        self.sleeps += 1
        self._on_sleep()
