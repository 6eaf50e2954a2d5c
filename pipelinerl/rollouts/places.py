"""The places for requests on the servers: how many are taken, and why the others are not. Pure state.

The actor looks at them ten times a second. What it sees is added up per weight version for the metrics, and
per second for the spans.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

from pipelinerl.spans import Spans

LOOK_S = 0.1
LINE_S = 1.0
NO_SERVERS = "servers"  # the word for why nothing is generated where there is no server


@dataclass(frozen=True)
class Look:
    """The places at one moment. blocked_by: why a free place is not taken; None where none is free."""

    in_flight: int  # requests of training
    capacity: int
    under_way: int  # rollouts that have begun, without those that wait for a place
    away: int  # of those, waiting for a judgement
    blocked_by: str | None


@dataclass
class PlaceSums:
    """Sums over looks, each weighed by the seconds since the one before."""

    seconds: float = 0.0
    sums: Counter[str] = field(default_factory=Counter)
    blocked: Counter[str] = field(default_factory=Counter)

    def add(self, look: Look, seconds: float) -> None:
        """Adds what held for the last `seconds`."""
        self.seconds += seconds
        for name in ("in_flight", "capacity", "under_way", "away"):
            self.sums[name] += getattr(look, name) * seconds
        if look.blocked_by:
            self.blocked[look.blocked_by] += seconds

    def metrics(self) -> dict[str, float]:
        """Returns shares of the time and of the places, with the seconds that they are of."""
        if not self.seconds:
            return {}
        outside = max(0.0, self.sums["under_way"] - self.sums["in_flight"])
        return {
            "places_s": self.seconds,
            "places_busy": _share(self.sums["in_flight"], self.sums["capacity"]),
            "outside_requests": _share(outside, self.sums["under_way"]),
            "judged_share": _share(self.sums["away"], self.sums["under_way"]),
            **{f"blocked_{word}": seconds / self.seconds for word, seconds in self.blocked.items()},
        }

    def means(self) -> dict[str, object]:
        """Returns the facts of a span."""
        means = {name: round(value / self.seconds, 3) for name, value in self.sums.items()}
        return {**means, "blocked": {word: round(seconds, 3) for word, seconds in self.blocked.items()}}


class PlaceTimes:
    """Takes the looks, and gives each second to the spans and each version to the metrics."""

    def __init__(self, spans: Spans):
        self._spans = spans
        self._last: float | None = None  # when it was looked last
        self._of_version = PlaceSums()
        self._of_second = PlaceSums()

    def look(self, look: Look) -> None:
        """Counts what is there now as what was there since the last call. The first call counts nothing."""
        now = time.monotonic()
        seconds = 0.0 if self._last is None else now - self._last
        self._last = now
        self._of_version.add(look, seconds)
        self._of_second.add(look, seconds)
        if self._of_second.seconds >= LINE_S:
            self._write()

    def _write(self) -> None:
        seconds = self._of_second.seconds
        self._spans.add("places", time.time() - seconds, seconds, **self._of_second.means())
        self._of_second = PlaceSums()

    def of_version(self) -> dict[str, float]:
        """Returns the metrics of the time since the last call."""
        metrics = self._of_version.metrics()
        self._of_version = PlaceSums()
        return metrics


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
