"""Computes the figures of one run for the table of schedules, from its records and its summary."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.ledger import ledger_of
from contracts.records import Rollout, StepClosed, WeightsPublished
from pipelinerl.config import load_config
from pipelinerl.streams.events import recorded, recorded_events
from pipelinerl.streams.of_run import recorded_streams

Group = list[Rollout]


@dataclass(frozen=True)
class Figures:
    """The figures of one run.

    stale_short, stale_long: shares of stale groups among trained and stale ones, by the longest response.
    """

    seconds: float  # from the first request to the last step
    tokens_per_s: float  # tokens that were trained on
    trainer_idle: float  # share of the steps' time
    places_free: float  # share of the slots
    lag_mean: float
    lag_max: int
    stale_short: float
    stale_long: float
    stale_by_queueing: int  # stale groups whose lag was less than `max_lag` when they were generated
    groups: int  # trained or stale
    sampled_length: float  # tokens per response, in trained and stale groups
    trained_length: float


def figures_of(run_dir: Path, long: int) -> Figures:
    """Returns the figures of a run that has ended. long: tokens from which a response counts as long."""
    summary = json.loads((run_dir / "summary.json").read_text())
    outcomes = ledger_of(run_dir).outcomes
    with recorded_streams(run_dir) as streams:
        groups = by_group(recorded(streams, "rollouts"))
        events = list(recorded_events(streams, ["trainer_events"]))
    steps = [event for event in events if isinstance(event, StepClosed)]
    published = [event for event in events if isinstance(event, WeightsPublished)]
    trained = [groups[group] for group in outcomes["trained"]]
    stale = [groups[group] for group in outcomes.get("stale", ())]
    seconds = steps[-1].at - min(rollout.started_at for group in groups.values() for rollout in group)
    lag_limit = load_config(run_dir).lag_limit or 0
    measured = summary["bottleneck_measured"]
    return Figures(
        seconds=seconds,
        tokens_per_s=sum(step.tokens for step in steps) / seconds,
        trainer_idle=measured["wait"],
        places_free=1 - measured["busy"],
        lag_mean=summary["lag_mean"],
        lag_max=summary["lag_max"],
        stale_short=share_of_stale(trained, stale, range(long)),
        stale_long=share_of_stale(trained, stale, range(long, sys.maxsize)),
        stale_by_queueing=sum(age_at_the_end(group, published) < lag_limit for group in stale),
        groups=len(trained) + len(stale),
        sampled_length=mean_length(trained + stale),
        trained_length=mean_length(trained),
    )


def by_group(rollouts: Iterable[Rollout]) -> dict[int, Group]:
    groups: dict[int, Group] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group_id, []).append(rollout)
    return groups


def share_of_stale(trained: list[Group], stale: list[Group], lengths: range) -> float:
    """Returns the share of stale groups among the groups whose longest response has a length in `lengths`."""
    dropped, kept = (sum(longest_answer(g) in lengths for g in groups) for groups in (stale, trained))
    return dropped / (dropped + kept) if dropped + kept else 0.0


def longest_answer(group: Group) -> int:
    return max(rollout.sampled_tokens for rollout in group)


def age_at_the_end(group: Group, published: list[WeightsPublished]) -> int:
    """Returns the lag in versions of a group's oldest token when the group was complete."""
    complete = max(rollout.finished_at for rollout in group)
    live = max(event.version for event in published if event.at <= complete)
    return live - min(rollout.versions[0] for rollout in group if rollout.versions)


def mean_length(groups: list[Group]) -> float:
    return fmean(rollout.sampled_tokens for group in groups for rollout in group)
