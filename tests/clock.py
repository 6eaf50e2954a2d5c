"""A clock that a test moves on, in the place of the module `time`."""

from collections.abc import Callable


class Clock:
    """The time is `now`; who sleeps moves it on. `sleeps`: how often that was."""

    def __init__(self, on_sleep: Callable[[], object] = lambda: None):
        self.now = 1000.0
        self.sleeps = 0
        self._on_sleep = on_sleep

    def __call__(self) -> float:
        return self.now

    monotonic = time = __call__

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        self._on_sleep()
