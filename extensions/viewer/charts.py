"""Converts metrics lines to the points of charts.

A metric that belongs to no chart of CHARTS gets its own, so that a new metric needs no change here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from extensions.viewer.lines import Line

POINTS = 1000  # most points of a series
Unit = Literal["share", "number", "seconds"]


@dataclass(frozen=True)
class Chart:
    """A chart of named series, one for each metric.

    begins: maps prefixes of metrics to prefixes of series names. Each metric with such a prefix is a series.
    """

    id: str
    title: str
    unit: Unit = "number"
    series: dict[str, str] = field(default_factory=dict)  # metric -> name
    begins: dict[str, str] = field(default_factory=dict)
    per_step: bool = False  # divide the metrics, in seconds, by the duration of the step

    def name_of(self, metric: str) -> str | None:
        """Returns the name of the metric's series, or None if the metric is not in this chart."""
        if metric in self.series:
            return self.series[metric]
        for begin, words in self.begins.items():
            if metric.startswith(begin):
                return f"{words}{metric.removeprefix(begin)}"
        return None


CHARTS = (
    Chart(
        "success",
        "Success",
        "share",
        {"actor/heldout_success": "held-out", "actor/success_rate": "training"},
        {"actor/heldout_success_": "held-out ", "actor/success_": "training "},
    ),
    Chart("reward", "Reward", series={"actor/reward_mean": "reward"}, begins={"actor/reward_": ""}),
    Chart("lag", "Lag, versions", series={"trainer/lag_mean": "mean", "trainer/lag_max": "largest"}),
    Chart("entropy", "Entropy, nats a token", series={"trainer/entropy": "entropy"}),
    Chart("grad_norm", "Gradient norm", series={"trainer/grad_norm": "gradient norm"}),
    Chart(
        "throughput",
        "Tokens a second",
        series={"actor/generation_tokens_per_s": "generated", "trainer/trained_tokens_per_s": "trained"},
    ),
    Chart("length", "Sampled tokens", series={"actor/length_mean": "mean", "actor/length_max": "longest"}),
    Chart("dropped", "Groups dropped since the start", begins={"preprocessor/dropped_": ""}),
    Chart(
        "time",
        "Time of a step",
        "share",
        {
            "trainer/wait_s": "wait for rollouts",
            "trainer/learn_s": "forward and backward",
            "trainer/optimizer_s": "optimizer",
            "trainer/publish_s": "publish weights",
        },
        per_step=True,
    ),
    Chart(
        "gap",
        "Log-probability gap, server to trainer",
        series={"trainer/logprob_gap_mean_abs": "mean", "trainer/logprob_gap_max_abs": "largest"},
    ),
)
OF_PROCESSES = ("trainer", "actor", "preprocessor", "judging")  # processes whose other metrics get charts
HIDDEN = (
    "trainer/alarm_",
    "preprocessor/alarm_",
    "trainer/weight_version",
    "trainer/step_s",
    "actor/heldout_",
)


class Point(NamedTuple):
    chart: str
    series: str
    step: int
    value: float


def points_of(line: Line) -> Iterator[Point]:
    """Yields a point for each metric of the line that belongs to a chart."""
    for metric, value in line.numbers.items():
        for chart in CHARTS:
            if name := chart.name_of(metric):
                step_s = line.numbers.get("trainer/step_s")
                if not chart.per_step:
                    yield Point(chart.id, name, line.step, value)
                elif step_s:
                    yield Point(chart.id, name, line.step, value / step_s)
                break
        else:
            if line.process in OF_PROCESSES and not metric.startswith(HIDDEN):
                yield Point(metric, metric.partition("/")[2], line.step, value)


class Series:
    """The points of all charts. A new line replaces points of its own and later steps, which were undone."""

    def __init__(self) -> None:
        self._points: dict[str, dict[str, list[tuple[int, float]]]] = {}

    def observe(self, line: Line) -> None:
        for point in points_of(line):
            points = self._points.setdefault(point.chart, {}).setdefault(point.series, [])
            while points and points[-1][0] >= point.step:
                points.pop()
            points.append((point.step, point.value))

    def answer(self) -> list[dict[str, object]]:
        """Returns the charts that have points as JSON values: those of CHARTS, then the others by name."""
        named = {chart.id: chart for chart in CHARTS}
        others = [chart for chart in self._points if chart not in named]
        charts = [*CHARTS, *(Chart(name, name) for name in sorted(others))]
        return [
            {
                "id": chart.id,
                "title": chart.title,
                "y": chart.unit,
                "x": "judgements" if chart.id.startswith("judging/") else "versions",
                "is_further": chart.id not in named,
                "series": [
                    {"name": name, "points": thinned(points)}
                    for name, points in self._points[chart.id].items()
                ],
            }
            for chart in charts
            if chart.id in self._points
        ]

    def of(self, chart: str, series: str) -> list[tuple[int, float]]:
        """Returns the points of a series, oldest first."""
        return self._points.get(chart, {}).get(series, [])


def thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Returns at most POINTS evenly spaced points, including the last."""
    every = -(-len(points) // POINTS)
    return points if every <= 1 else [*points[:-1:every][: POINTS - 1], points[-1]]
