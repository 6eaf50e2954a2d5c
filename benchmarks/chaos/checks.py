"""Checks what must hold when a launch of a run has ended, and when the run has ended."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.launches import Launches
from benchmarks.chaos.plan import Plan
from benchmarks.ledger import IN_FLIGHT, ledger_of
from benchmarks.run_processes import processes_of
from contracts.records import Record, Resumed, Rollout, StepClosed, WeightsPublished
from pipelinerl.report.run_totals import accounts_of
from pipelinerl.streams import StreamError, Streams
from pipelinerl.streams.events import recorded, recorded_events
from pipelinerl.streams.of_run import recorded_streams

SETTLES_WITHIN_S = 10.0  # records that are read while others are written may be inconsistent
# Mean difference between the two engines of a pair.
LOGPROB_GAP = {"scripted": 1e-4, "real": 1e-2, "smollm2": 1e-3, "agents": 1e-2}


def errors_of_running(launches: Launches) -> list[str]:
    """Returns lasting errors of a running launch: processes that it does not own, and its accounting."""
    deadline = time.monotonic() + SETTLES_WITHIN_S
    while (errors := _strays(launches) + _identity(launches.run_dir)) and time.monotonic() < deadline:
        time.sleep(1.0)
    return errors


def _strays(launches: Launches) -> list[str]:
    strays = sorted({*processes_of(launches.run_dir)} - launches.held())
    return [f"{len(strays)} processes are not the launcher's: {strays}"] * bool(strays)


def errors_of_launch(launches: Launches) -> list[str]:
    """Returns the errors after the end of a launch: remaining processes, groups lost or settled twice."""
    left = launches.left_behind()
    return [f"{len(left)} processes outlived the launch: {left}"] * bool(left) + _identity(launches.run_dir)


def errors_of_run(plan: Plan, run_dir: Path, max_steps: int) -> list[str]:
    """Returns the errors of a run that has ended by itself."""
    return [
        *_identity(run_dir),
        *(f"{len(lost)} groups were lost" for lost in [ledger_of(run_dir).outcomes.get(IN_FLIGHT)] if lost),
        *_summary(plan, run_dir, max_steps),
        *_versions(plan, run_dir),
    ]


def _identity(run_dir: Path) -> list[str]:
    try:
        errors = ledger_of(run_dir).errors
        with recorded_streams(run_dir) as streams:
            return errors + accounts_of(streams).errors()
    except StreamError as error:
        return [f"the streams cannot be read: {error}"]


def _summary(plan: Plan, run_dir: Path, max_steps: int) -> Iterator[str]:
    summary = json.loads((run_dir / "summary.json").read_text())
    expected = {"optimizer_steps": max_steps, "rollouts_lost": 0, "accounting_errors": []}
    for name, value in expected.items():
        if summary[name] != value:
            yield f"{name} of the summary is {summary[name]}, not {value}"
    gap = summary["logprob_gap_mean_abs"]
    if gap is not None and not gap < LOGPROB_GAP[plan.shape.pair]:
        yield f"log-probabilities of servers and trainer differ by {gap:g}"


def _versions(plan: Plan, run_dir: Path) -> Iterator[str]:
    """Yields errors: rollouts of versions that their server never had, trained tokens of too much lag.

    Servers that pull take versions by themselves, so of theirs it is checked that somebody published them.
    """
    with recorded_streams(run_dir) as streams:
        published, unrecorded = _published(streams)
        if plan.shape.weights == "relay":
            unrecorded |= {version for versions in published.values() for version in versions}
        for rollout in recorded(streams, "rollouts"):
            wrong = _never_given(rollout, published, unrecorded)
            if wrong is not None:
                yield f"{rollout.rollout_id}: version {wrong} was never published to its server"
        steps = [record for record in recorded(streams, "trainer_events") if isinstance(record, StepClosed)]
    most = max((lag for step in steps for lag in step.lag_histogram), default=0)
    if most > plan.shape.lag_limit:
        yield f"tokens of lag {most} were trained, and {plan.shape.lag_limit} is the limit"


def _published(streams: Streams) -> tuple[dict[str, set[int]], set[int]]:
    """Returns the versions that each server had, and those that may have been published unrecorded."""
    versions: dict[str, set[int]] = {}
    unrecorded: set[int] = set()
    newest = -1
    for record in [*recorded_events(streams, ("trainer_events",)), None]:
        if isinstance(record, WeightsPublished):
            newest = record.version
            for url in record.servers:
                versions.setdefault(url, set()).add(newest)
        elif record is None or isinstance(record, Resumed):
            unrecorded.add(newest + 1)
    return versions, unrecorded


def _never_given(record: Record, published: dict[str, set[int]], unrecorded: set[int]) -> int | None:
    if not isinstance(record, Rollout) or record.failed:
        return None
    for completion in record.completions:
        newest = completion.spans[-1].version if completion.spans else None
        if newest is not None and newest not in published.get(completion.server, set()) | unrecorded:
            return newest
    return None
