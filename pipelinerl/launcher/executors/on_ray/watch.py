"""Asks the head of a cluster for its nodes, once a second, in a thread, because the question can block."""

import threading
import time
from collections.abc import Callable

from pipelinerl.launcher.executors.on_ray.nodes import Node

EVERY_S = 1.0
SILENT_S = 20.0  # of a head that is gone; Ray ends this process 60 s after its last answer


class Watch:
    def __init__(self, nodes: Callable[[], list[Node]]):
        self._ask = nodes
        self._nodes = nodes()
        self._silence_s = 0.0
        self._looked_at = time.monotonic()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def nodes(self) -> list[Node]:
        """Returns the nodes that lived when the head answered last."""
        return self._nodes

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
                self._nodes = self._ask()
            except Exception:  # of Ray's, of many kinds: no answer, as when it blocks
                continue
            self._silence_s = 0.0
