"""Asks the head of a cluster what there is, once a second, in a thread, because the question can block."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from pipelinerl.launcher.executors.bundles import Resources
from pipelinerl.launcher.executors.on_ray.nodes import Node

EVERY_S = 1.0
FRESH_S = 5.0  # since an answer: a question would not block
SILENT_S = 20.0  # of a head that is gone; Ray ends this process 60 s after its last answer


class View(NamedTuple):
    """Holds what the head has told."""

    nodes: list[Node]  # those that live
    could_be_added: list[Resources]  # kinds of nodes that an autoscaler may start


class Watch:
    def __init__(self, ask: Callable[[], View]):
        self._ask = ask
        self.view = ask()  # the last answer
        self._answered_at = time.monotonic()
        self._silence_s = 0.0
        self._looked_at = self._answered_at
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def is_fresh(self) -> bool:
        """Tells whether the head has answered a short time ago."""
        return time.monotonic() - self._answered_at < FRESH_S

    def is_silent(self) -> bool:
        """Tells whether the head has not answered for so long that it is taken to be gone.

        Seconds in which nobody asked this do not count: this process may have been stopped.
        """
        now = time.monotonic()
        self._silence_s += min(now - self._looked_at, EVERY_S)
        self._looked_at = now
        return self._silence_s > SILENT_S

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(EVERY_S):
            try:
                self.view = self._ask()
            except Exception:  # of Ray's, of many kinds: no answer, as when it blocks
                continue
            self._answered_at = time.monotonic()
            self._silence_s = 0.0
