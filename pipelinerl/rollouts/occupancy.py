"""Measures the use of the servers' request slots, and why slots are free. Pure state.

The actor takes ten samples a second. They are summed per weight version for the metrics, and per second for
the spans.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

from pipelinerl.metrics import BlockedBy
from pipelinerl.spans import Spans

SAMPLE_S = 0.1
LINE_S = 1.0


@dataclass(frozen=True)
class Occupancy:
    """A sample of the request slots. blocked_by: why a free slot is not used; None if no slot is free."""

    in_flight: int  # requests of training rollouts
    capacity: int  # request slots of all servers
    under_way: int  # started rollouts, except those that wait for a slot
    away: int  # those of them that wait for a judgement, or for a program between its requests
    blocked_by: BlockedBy | None


@dataclass
class OccupancySums:
    """Sums of samples, each weighted by the seconds since the previous one.

    runs_programs: True if the domain does.
    """

    runs_programs: bool = False
    seconds: float = 0.0
    sums: Counter[str] = field(default_factory=Counter)
    blocked: Counter[str] = field(default_factory=Counter)

    def add(self, occupancy: Occupancy, seconds: float) -> None:
        self.seconds += seconds
        for name in ("in_flight", "capacity", "under_way", "away"):
            self.sums[name] += getattr(occupancy, name) * seconds
        if occupancy.blocked_by:
            self.blocked[occupancy.blocked_by] += seconds

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the slots: shares of the time and of the capacity, and the seconds."""
        if not self.seconds:
            return {}
        outside = max(0.0, self.sums["under_way"] - self.sums["in_flight"])
        return {
            "places_s": self.seconds,
            "places_busy": _share(self.sums["in_flight"], self.sums["capacity"]),
            "outside_requests": _share(outside, self.sums["under_way"]),
            "agent_share" if self.runs_programs else "judged_share": _share(
                self.sums["away"], self.sums["under_way"]
            ),
            **{f"blocked_{word}": seconds / self.seconds for word, seconds in self.blocked.items()},
        }

    def means(self) -> dict[str, object]:
        means = {name: round(value / self.seconds, 3) for name, value in self.sums.items()}
        return {**means, "blocked": {word: round(seconds, 3) for word, seconds in self.blocked.items()}}


class OccupancyTimes:
    """The sums of the current second, for the spans, and of the current version, for the metrics."""

    def __init__(self, spans: Spans, runs_programs: bool = False):
        self._spans = spans
        self._runs_programs = runs_programs
        self._last: float | None = None  # time of the last sample
        self._of_version = OccupancySums(self._runs_programs)
        self._of_second = OccupancySums()

    def sample(self, occupancy: Occupancy) -> None:
        """Adds a sample for the time since the last call. The first call has the weight 0."""
        now = time.monotonic()
        seconds = 0.0 if self._last is None else now - self._last
        self._last = now
        self._of_version.add(occupancy, seconds)
        self._of_second.add(occupancy, seconds)
        if self._of_second.seconds >= LINE_S:
            self._write()

    def _write(self) -> None:
        seconds = self._of_second.seconds
        self._spans.add("places", time.time() - seconds, seconds, **self._of_second.means())
        self._of_second = OccupancySums()

    def of_version(self) -> dict[str, float]:
        """Returns the metrics of the time since the last call."""
        metrics = self._of_version.metrics()
        self._of_version = OccupancySums(self._runs_programs)
        return metrics


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
