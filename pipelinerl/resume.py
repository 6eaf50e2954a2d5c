"""Resuming a run: what becomes of every group that it left behind, decided before any process starts.

A group that the checkpoint does not know as trained is *replayed* if all of it had been sampled by weights
that the resumed run knows: it will be trained without being sampled again. It is dropped as `rolled_back`
if younger weights took part, and as `interrupted` if it was not whole; then its problem is drawn again.
Groups that had been dropped before stay dropped.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from contracts.records import Resumed, Rollout, SamplerState
from pipelinerl.accounting import GroupAccounts
from pipelinerl.checkpoints import START, Checkpoints, Position
from pipelinerl.events import EVENT_STREAMS, recorded, recorded_events
from pipelinerl.jobs import PlanError
from pipelinerl.streams.base import StreamBusy, Streams

DATA_STREAMS = ("rollouts", "eval_rollouts", "rows")


def choose(checkpoints: Checkpoints, resume: bool | int, max_steps: int) -> Position:
    """The newest checkpoint, or that of a version. Without any, a run begins again with version 0."""
    whole = {position.version: position for position in [START, *checkpoints.whole()]}
    version = max(whole) if resume is True else resume
    if version not in whole:
        raise PlanError(f"resume={resume}: there are checkpoints of versions {', '.join(map(str, whole))}")
    if version >= max_steps:
        raise PlanError(f"the run has made {version} steps and max_steps is {max_steps}; raise it to go on")
    return whole[version]


def resume(streams: Streams, checkpoints: Checkpoints, position: Position) -> Resumed:
    """Write down how the run goes on. No process of the run may be alive."""
    with ExitStack() as held:
        ends = {}
        for name in (*EVENT_STREAMS, *DATA_STREAMS):
            try:
                writer = streams.writer(name)
            except StreamBusy as error:
                raise PlanError(f"the run is still alive: {error}") from None
            held.callback(writer.close)
            ends[name] = writer.end
        launcher_events = streams.writer("launcher_events")
        held.callback(launcher_events.close)
        resumed = plan(streams, position, ends)
        checkpoints.forget_after(position.version)  # first: they belong to the history that is undone
        launcher_events.append(resumed)
    return resumed


def describe(resumed: Resumed) -> str:
    return (
        f"resuming from version {resumed.version}: {len(resumed.replayed)} groups are replayed, "
        f"{len(resumed.interrupted)} were interrupted, {len(resumed.rolled_back)} are rolled back"
    )


def plan(streams: Streams, position: Position, ends: dict[str, int]) -> Resumed:
    accounts, sampler = GroupAccounts(), None
    for event in recorded_events(streams):
        accounts.observe(event)
        if isinstance(event, SamplerState):
            sampler = event
    unsettled = accounts.unsettled(position.version)
    rollouts = recorded(streams, "rollouts", position.rollouts_offset, ends["rollouts"])
    sizes = {group: accounts.started[group].rollouts for group in unsettled}
    replayed, interrupted, rolled_back = sort_groups(sizes, rollouts, position.version)
    return Resumed(
        version=position.version,
        ends=ends,
        rollouts_offset=position.rollouts_offset,
        replayed=replayed,
        interrupted=interrupted,
        rolled_back=rolled_back,
        next_group=max(accounts.started, default=-1) + 1,
        draws=len({started.draw for started in accounts.started.values()}),
        redraws=accounts.lost_draws({*interrupted, *rolled_back}),
        sampler=sampler,
    )


def sort_groups(
    sizes: dict[int, int], rollouts: Iterator[Rollout], version: int
) -> tuple[list[int], list[int], list[int]]:
    """Replayed, interrupted, rolled back. `sizes`: how many rollouts make each group whole."""
    found = dict.fromkeys(sizes, 0)
    rolled_back = set()
    for rollout in rollouts:
        if rollout.group_id in sizes:
            found[rollout.group_id] += 1
            if max(rollout.versions, default=0) > version:
                rolled_back.add(rollout.group_id)
    rest = [group for group in sizes if group not in rolled_back]
    whole = [group for group in rest if found[group] == sizes[group]]
    return whole, [group for group in rest if found[group] < sizes[group]], sorted(rolled_back)
