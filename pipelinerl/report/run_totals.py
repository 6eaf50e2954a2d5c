"""Computes the totals of a run from its streams, for the report. No stream is held in memory.

Only the log-probability gap and the end of training come from the trainer's metrics.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from contracts.records import (
    ActorStopped,
    Completion,
    Evaluated,
    Record,
    Resumed,
    Rollout,
    ServerJoined,
    Settled,
    Started,
    StepClosed,
    TrainingDone,
    WeightsPublished,
)
from pipelinerl.judging.level import isolation_of
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.report.accounting import GroupAccounts
from pipelinerl.report.measurements import PROCESSES, Measurements, MetricLines
from pipelinerl.report.wall_time import WallTime
from pipelinerl.streams import Streams
from pipelinerl.streams.events import recorded, recorded_events, results_left, resumptions

MEASURED_STEPS = 1000  # last steps from which the bottleneck is found


class VersionMean(NamedTuple):
    """The means of the training rollouts whose newest version is `version`."""

    version: int
    reward: float
    success: float


class RolloutTotals:
    """Running sums over the training rollouts."""

    def __init__(self):
        self.tokens = 0
        self.multi_version = 0
        self.retried = 0
        self.out_of_time = 0
        self.failed: Counter[str] = Counter()  # failed rollouts, by status
        self.failed_by_infrastructure = 0
        self.phases: dict[str, tuple[float, float]] = {}  # run id of rollouts -> start and end, unix seconds
        self.first_version: int | None = None  # first version of the first rollout
        self._by_version: dict[int, Counter[str]] = {}  # newest version of a rollout -> sums

    def count_rollout(self, rollout: Rollout) -> None:
        """Adds a training rollout."""
        versions = rollout.versions
        self.tokens += rollout.sampled_tokens
        self.multi_version += len(versions) > 1
        self.failed.update([rollout.status] if rollout.failed else [])
        self.failed_by_infrastructure += rollout.failed_by_infrastructure
        self.retried += rollout.metrics.get("retries", 0) > 0
        self.out_of_time += rollout.metrics.get("out_of_time", 0) > 0
        began, ended = self.phases.get(rollout.run, (rollout.started_at, rollout.finished_at))
        self.phases[rollout.run] = min(began, rollout.started_at), max(ended, rollout.finished_at)
        if versions:
            if self.first_version is None:
                self.first_version = versions[0]
            sums = self._by_version.setdefault(versions[-1], Counter())
            sums.update(rollouts=1, reward=rollout.reward, success=rollout.success or 0.0)

    def go_back_to(self, version: int) -> None:
        """Removes newer versions from the means, because they were undone. Other sums are unchanged."""
        self._by_version = {made: sums for made, sums in self._by_version.items() if made <= version}

    def seconds(self, trained_until: float | None) -> float | None:
        """Returns the seconds of generation and training, or None without rollouts.

        Each incarnation counts from its first rollout to its last one, and the newest to the end of training.
        """
        if not self.phases:
            return None
        began, ended = [*self.phases.values()][-1]
        earlier = [*self.phases.values()][:-1]
        return sum(end - begin for begin, end in earlier) + max(ended, trained_until or ended) - began

    def version_means(self) -> list[VersionMean]:
        return [
            VersionMean(version, sums["reward"] / sums["rollouts"], sums["success"] / sums["rollouts"])
            for version, sums in sorted(self._by_version.items())
        ]


class RunTotals:
    """The totals for the summary, computed in one pass over each stream.

    resumed_at: the times of the resumptions, in unix seconds.
    """

    def __init__(self, resumed_at: Sequence[float] = ()):
        self.rollouts = RolloutTotals()
        self.accounts = GroupAccounts()
        self.evaluations: list[Evaluated] = []
        self.steps: dict[int, StepClosed] = {}  # by version
        self.without_gradient: set[int] = set()  # versions of steps whose gradient was exactly 0
        self.weight_updates = 0
        self.resumed = 0  # number of resumptions
        self.solved_at: int | None = None  # version whose evaluation met `stop_at`
        self.updates_while_generating: set[tuple[str, int]] = set()  # (run id of a rollout, version)
        self.gaps: list[float] = []  # mean absolute gap of each probe
        self.largest_gap: float | None = None
        self.wall_time = WallTime(resumed_at)
        self.trained_until: float | None = None
        self.judging_isolation: str | None = None
        self.measurements: Measurements | None = None
        self.cut: list[str] = []  # streams whose oldest records retention has deleted

    def add_rollout(self, rollout: Rollout) -> None:
        self.wall_time.observe(rollout.started_at)
        self.wall_time.observe(rollout.finished_at)
        for completion in rollout.completions:
            arrived = versions_that_arrived_during(completion)
            self.updates_while_generating |= {(rollout.run, version) for version in arrived}

    def add_event(self, event: Record) -> None:
        """Adds an event, in the order of `recorded_events`."""
        match event:
            case Started() | Settled() | ActorStopped():
                self.accounts.observe(event)
            case Resumed():
                self.accounts.observe(event)
                self._go_back_to(event.version)
            case Evaluated():
                self.evaluations.append(event)
            case WeightsPublished():
                self.weight_updates += 1
            case StepClosed():
                self.steps[event.version] = event
            case TrainingDone():
                self.solved_at = event.solved

    def add_launcher_event(self, event: Record) -> None:
        """Records the time of a server's joining, which precedes the first rollout of an incarnation."""
        if isinstance(event, ServerJoined) and event.at:
            self.wall_time.observe(event.at)

    def _go_back_to(self, version: int) -> None:
        self.resumed += 1
        self.solved_at = None
        self.steps = {made: step for made, step in self.steps.items() if made <= version}
        self.evaluations = results_left(self.evaluations, version)

    @property
    def lags(self) -> Counter[int]:
        """The numbers of trained tokens, by lag."""
        lags: Counter[int] = Counter()
        for step in self.steps.values():
            lags.update({} if step.skipped else step.lag_histogram)
        return lags

    @property
    def trained_tokens(self) -> int:
        """The tokens of the steps since the first rollout that retention has kept."""
        since = min((began for began, _ in self.rollouts.phases.values()), default=0.0) if self.cut else 0.0
        return sum(step.tokens for step in self.steps.values() if not step.skipped and step.at >= since)

    def add_trainer_metrics(self, line: dict) -> None:
        self.trained_until = line["time"]
        if "grad_norm" in line:
            self.without_gradient -= {line["step"]}
            self.without_gradient |= {line["step"]} if line["grad_norm"] == 0 else set()
        self.wall_time.observe(line["time"])
        if (gap := line.get("logprob_gap_mean_abs")) is not None:
            self.gaps.append(gap)
        if (gap := line.get("logprob_gap_max_abs")) is not None:
            self.largest_gap = highest(self.largest_gap, gap)


def read_totals(run_dir: Path, streams: Streams) -> RunTotals:
    """Returns the totals of everything that a run has recorded."""
    totals = RunTotals([resumed.at for resumed in resumptions(streams)])
    totals.judging_isolation = isolation_of(run_dir)
    totals.cut = [name for name in ("rollouts", "eval_rollouts") if streams.reader(name).first_offset()]
    for event in recorded(streams, "launcher_events"):
        totals.add_launcher_event(event)
    for record in recorded_events(streams, ("rollouts",)):
        if isinstance(record, Resumed):
            totals.rollouts.go_back_to(record.version)
        else:
            totals.add_rollout(record)
            totals.rollouts.count_rollout(record)
    for rollout in recorded(streams, "eval_rollouts"):
        totals.add_rollout(rollout)
    for event in recorded_events(streams):
        totals.add_event(event)
    for line in read_metrics(metrics_path(run_dir, "trainer")):
        totals.add_trainer_metrics(line)
    totals.measurements = measurements_of(run_dir)
    return totals


def accounts_of(streams: Streams) -> GroupAccounts:
    accounts = GroupAccounts()
    for event in recorded_events(streams):
        accounts.observe(event)
    return accounts


def measurements_of(run_dir: Path) -> Measurements | None:
    """Returns the measurements of the last steps, or None if none are recorded."""
    lines = MetricLines(MEASURED_STEPS)
    by_process = (_lines_of(run_dir, process) for process in PROCESSES)
    for process, line in heapq.merge(*by_process, key=lambda item: item[1]["time"]):
        lines.observe(process, line)
    return lines.measured()


def _lines_of(run_dir: Path, process: str) -> Iterator[tuple[str, dict]]:
    return ((process, line) for line in read_metrics(metrics_path(run_dir, process)))


def versions_that_arrived_during(completion: Completion) -> set[int]:
    """Returns the weight versions that replaced older ones during the completion."""
    sampled = [span.version for span in completion.spans if span.end > span.start]
    return {version for version in sampled if version > sampled[0]}


def highest(known: float | None, other: float | None) -> float | None:
    return max((value for value in (known, other) if value is not None), default=None)
