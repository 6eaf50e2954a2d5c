"""Measures the seconds of each phase of a publication."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from contracts.records import WeightsPublished
from pipelinerl.spans import Spans

Item = TypeVar("Item")


class Phases:
    """The seconds of each phase. A phase lasts until the next one begins."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._name: str | None = None
        self._since = 0.0

    def begin(self, name: str) -> None:
        """Ends the current phase, and begins or resumes this one."""
        self._seconds = self.seconds()
        self._name = name
        self._since = self._clock()

    def inside(self, name: str, items: Iterator[Item]) -> Iterator[Item]:
        """Yields the items. The time to produce each counts for the phase `name`."""
        around = self._name
        while True:
            self.begin(name)
            item = next(items, None)
            self.begin(around)
            if item is None:
                return
            yield item

    def seconds(self) -> dict[str, float]:
        so_far = dict(self._seconds)
        if self._name is not None:
            so_far[self._name] = so_far.get(self._name, 0.0) + self._clock() - self._since
        return so_far


def add_phases(spans: Spans, published: WeightsPublished) -> None:
    """Records the phases of a publication that has just ended as consecutive spans."""
    began = time.time() - published.seconds
    gather_s = published.phases.get("gather", 0.0)
    for name in ("open", "send", "confirm"):
        facts = {"gather_s": round(gather_s, 6)} if name == "send" else {}
        seconds = published.phases.get(name, 0.0) + (gather_s if name == "send" else 0.0)
        spans.add(name, began, seconds, version=published.version, **facts)
        began += seconds
