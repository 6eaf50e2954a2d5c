"""Resuming a run: decides the outcome of every unfinished group before any process starts.

A group that was not trained before the checkpoint is *replayed*, which trains it without sampling it again.
That requires a complete group, sampled only by the checkpoint's weights or older ones. An incomplete group is
dropped as `interrupted`, and a group with newer weights as `rolled_back`; their problems are drawn again. A
member that a server, a time limit or a judge failed does not count as complete: the stop may be the cause.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from contracts.records import Resumed, Rollout, SamplerState, StepClosed, TrainingDone
from pipelinerl.config import ReferenceConfig, StopAtConfig
from pipelinerl.errors import PlanError
from pipelinerl.report.run_totals import accounts_of
from pipelinerl.streams.base import StreamBusyError, Streams, StreamWriter
from pipelinerl.streams.events import (
    EVENT_STREAMS,
    latest_resumption,
    recorded,
    recorded_events,
    results_left,
    valid_results,
)
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.training.checkpoints import START, Checkpoints, Position
from pipelinerl.training.stopping import Stopping

DATA_STREAMS = ("rollouts", "eval_rollouts", "rows")


class StillAliveError(PlanError):
    """A process of the run has one of its streams open for writing."""


def choose(
    run_dir: Path,
    checkpoints: Checkpoints,
    resume: bool | int,
    max_steps: int,
    stop_at: StopAtConfig | None = None,
) -> Position:
    """Returns the newest checkpoint, or that of a version. START, with version 0, counts as one."""
    complete = {position.version: position for position in [START, *checkpoints.complete_checkpoints()]}
    version = max(complete) if resume is True else resume
    if version not in complete:
        raise PlanError(f"resume={resume}: there are checkpoints of versions {', '.join(map(str, complete))}")
    if version > max_steps:
        raise PlanError(all_steps_made(version, max_steps))
    if checkpoints.final.exists():
        with recorded_streams(run_dir) as streams:
            check_unfinished(streams, version, max_steps, stop_at)
    return complete[version]


def check_unfinished(streams: Streams, version: int, max_steps: int, stop_at: StopAtConfig | None) -> None:
    """Raises PlanError if nothing is left to train or evaluate from `version`."""
    if not accounts_of(streams).ended:
        return
    solved = Stopping(stop_at, results_left(valid_results(streams), version)).solved
    if solved:
        raise PlanError(
            f"the run was solved at step {solved.version}, with held-out success {solved.success:.2f}; "
            "stop_at=null resumes it all the same"
        )
    if version == max_steps:
        raise PlanError(all_steps_made(version, max_steps))


def check_reference_kept(checkpoints: Checkpoints, version: int, reference: ReferenceConfig | None) -> None:
    """Raises PlanError if the reference weights that a resume from `version` needs are not stored."""
    if reference is None or reference.renew_every is None:
        return
    needed = reference.version_at(version)
    if needed < version and not checkpoints.reference(needed).exists():
        raise PlanError(
            f"reference.renew_every={reference.renew_every}: to resume from version {version}, the weights "
            f"of version {needed} are needed, and the run has not kept them; set reference.renew_every to "
            f"what it was, or to a divisor of {version}"
        )


def all_steps_made(version: int, max_steps: int) -> str:
    return f"the run has made {version} steps and max_steps is {max_steps}; raise it to resume"


def launcher_events(streams: Streams) -> StreamWriter:
    """Opens the launcher's stream. Raises PlanError if another launcher has it open."""
    try:
        return streams.writer("launcher_events")
    except StreamBusyError as error:
        raise PlanError(f"the run is still alive: {error}") from None


def resume(streams: Streams, launcher: StreamWriter, checkpoints: Checkpoints, position: Position) -> Resumed:
    """Records how the run resumes. Raises StillAliveError if a process of the run is alive."""
    with ExitStack() as stack:
        ends = {}
        for name in (*EVENT_STREAMS, *DATA_STREAMS):
            try:
                writer = streams.writer(name)
            except StreamBusyError as error:
                raise StillAliveError(f"the run is still alive: {error}") from None
            stack.callback(writer.close)
            ends[name] = writer.end
        check_covered(streams, position, ends)
        streams.sync((*EVENT_STREAMS, *DATA_STREAMS))  # before `ends` is recorded
        checkpoints.discard_after(position.version)  # before the record that undoes those versions
        kept = [checkpoint.rollouts_offset for checkpoint in checkpoints.complete_checkpoints()]
        resumed = resumption(streams, position, ends, min(kept, default=None))
        launcher.append(resumed)
        streams.sync(["launcher_events"])
    return resumed


def resume_from_newest(streams: Streams, launcher: StreamWriter, run_dir: Path) -> Resumed | None:
    """Records how the run resumes from its newest checkpoint. Returns None if the run has ended."""
    checkpoints = Checkpoints(run_dir)
    if checkpoints.final.exists() and accounts_of(streams).ended:
        return None
    newest = max([START, *checkpoints.complete_checkpoints()])
    if checkpoints.final.exists() and newest.version < done_version(streams):
        raise PlanError(
            f"training is done, and its last evaluation is missing: the model is in {checkpoints.final}, and "
            "there is no checkpoint of its version to evaluate it from"
        )
    return resume(streams, launcher, checkpoints, newest)


def done_version(streams: Streams) -> int:
    """Returns the final version if training is done, or 0."""
    begin = latest_resumption(streams).ends.get("trainer_events", 0)
    events = recorded(streams, "trainer_events", begin)
    return next((event.version for event in events if isinstance(event, TrainingDone)), 0)


def check_there(checkpoints: Checkpoints, position: Position) -> None:
    """Raises PlanError if the checkpoint has been removed since it was chosen, by a copy that went on."""
    if position not in (START, *checkpoints.complete_checkpoints()):
        raise PlanError(f"checkpoint {position.version} has just been removed; resume again from a newer one")


def check_covered(streams: Streams, position: Position, ends: dict[str, int]) -> None:
    """Raises PlanError if the streams end before the checkpoint, because their server was killed."""
    closed = 0
    for event in recorded_events(streams):
        if isinstance(event, Resumed | StepClosed):
            closed = event.version
    if position.version > closed or position.rollouts_offset > ends["rollouts"]:
        raise PlanError(
            f"the streams have lost what checkpoint {position.version} was made of: they end with version "
            f"{closed}; resume=VERSION resumes from an older checkpoint"
        )


def describe(resumed: Resumed) -> str:
    return (
        f"resuming from version {resumed.version}: {len(resumed.replayed)} groups are replayed, "
        f"{len(resumed.interrupted)} were interrupted, {len(resumed.rolled_back)} are rolled back"
    )


def resumption(
    streams: Streams, position: Position, ends: dict[str, int], kept_offset: int | None
) -> Resumed:
    """Returns the record of the resume. `kept_offset`: the first rollout that any checkpoint may need."""
    accounts = accounts_of(streams)
    # Old runs have sampler states among the actor's events.
    states = (e for name in ("actor_events", "sampler_states") for e in recorded(streams, name))
    samplers = deque((e for e in states if isinstance(e, SamplerState)), maxlen=1)
    unsettled = accounts.unsettled(position.version)
    rollouts = recorded(streams, "rollouts", position.rollouts_offset, ends["rollouts"])
    sizes = {group: accounts.started[group].rollouts for group in unsettled}
    replayed, interrupted, rolled_back = sort_groups(sizes, rollouts, position.version)
    return Resumed(
        at=time.time(),
        version=position.version,
        ends=ends,
        rollouts_offset=position.rollouts_offset,
        kept_offset=kept_offset,
        replayed=replayed,
        interrupted=interrupted,
        rolled_back=rolled_back,
        next_group=max(accounts.started, default=-1) + 1,
        draws=max((started.draw for started in accounts.started.values()), default=-1) + 1,
        redraws=accounts.lost_draws({*interrupted, *rolled_back}),
        sampler=next(iter(samplers), None),
    )


def sort_groups(
    sizes: dict[int, int], rollouts: Iterator[Rollout], version: int
) -> tuple[list[int], list[int], list[int]]:
    """Returns the ids of the replayed, interrupted and rolled-back groups. `sizes`: rollouts by group id."""
    found = dict.fromkeys(sizes, 0)
    rolled_back = set()
    for rollout in rollouts:
        # A failure of a server or a judge may be due to the end of the run: the group is drawn again.
        if rollout.group_id in sizes and not rollout.failed_by_infrastructure:
            found[rollout.group_id] += 1
            if max(rollout.versions, default=0) > version:
                rolled_back.add(rollout.group_id)
    rest = [group for group in sizes if group not in rolled_back]
    complete = [group for group in rest if found[group] == sizes[group]]
    return complete, [group for group in rest if found[group] < sizes[group]], sorted(rolled_back)
