"""Polls the head of a cluster for its nodes, once a second, in a thread, because the call can block."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from extensions.cluster.on_ray.nodes import Node
from pipelinerl.launcher.executors.bundles import Resources

EVERY_S = 1.0
FRESH_S = 5.0  # for so long after an answer, a call is not expected to block
SILENT_S = 20.0  # a head without an answer for so long is gone; after 60 s, Ray would end this process


class View(NamedTuple):
    """The head's last answer."""

    nodes: list[Node]  # living nodes
    could_be_added: list[Resources]  # kinds of nodes that an autoscaler may start


class Watch:
    def __init__(self, fetch: Callable[[], View]):
        self._fetch = fetch
        self.view = fetch()  # the last answer
        self._answered_at = time.monotonic()
        self._silence_s = 0.0
        self._checked_at = self._answered_at
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def is_fresh(self) -> bool:
        """Returns whether the head has answered recently."""
        return time.monotonic() - self._answered_at < FRESH_S

    def is_silent(self) -> bool:
        """Returns whether the head has not answered for so long that it is taken to be gone.

        Time without calls of this method does not count, because this process may have been stopped.
        """
        now = time.monotonic()
        self._silence_s += min(now - self._checked_at, EVERY_S)
        self._checked_at = now
        return self._silence_s > SILENT_S

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(EVERY_S):
            try:
                self.view = self._fetch()
            except Exception:  # Ray raises many kinds of errors; they count as no answer
                continue
            self._answered_at = time.monotonic()
            self._silence_s = 0.0
