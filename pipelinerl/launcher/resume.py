"""Resuming a run: what becomes of every group that it left behind, decided before any process starts.

A group that the checkpoint does not know as trained is *replayed* if weights that the resumed run knows
sampled all of it. It will be trained without being sampled again. It is dropped as `rolled_back` if newer
weights took part, and as `interrupted` if it was not complete; then its problem is drawn again. Groups that
had been dropped before stay dropped.
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
    """A process of the run holds one of its streams."""


def choose(
    run_dir: Path,
    checkpoints: Checkpoints,
    resume: bool | int,
    max_steps: int,
    stop_at: StopAtConfig | None = None,
) -> Position:
    """Returns the newest checkpoint, or that of a version. Without any, a run starts again with version 0.

    A run that finished its last step but not its final evaluation can still be resumed.
    """
    whole = {position.version: position for position in [START, *checkpoints.complete_checkpoints()]}
    version = max(whole) if resume is True else resume
    if version not in whole:
        raise PlanError(f"resume={resume}: there are checkpoints of versions {', '.join(map(str, whole))}")
    if version > max_steps:
        raise PlanError(all_steps_made(version, max_steps))
    if checkpoints.final.exists():
        with recorded_streams(run_dir) as streams:
            check_unfinished(streams, version, max_steps, stop_at)
    return whole[version]


def check_unfinished(streams: Streams, version: int, max_steps: int, stop_at: StopAtConfig | None) -> None:
    """Raises PlanError where the run has ended and there is nothing to train from `version`."""
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
    """Raises PlanError if the weights of the reference are needed to resume from `version` and not there."""
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
    """Opens the launcher's stream. Raises PlanError if another launcher holds its writer."""
    try:
        return streams.writer("launcher_events")
    except StreamBusyError as error:
        raise PlanError(f"the run is still alive: {error}") from None


def resume(streams: Streams, launcher: StreamWriter, checkpoints: Checkpoints, position: Position) -> Resumed:
    """Writes down how the run resumes. No process of the run may be alive."""
    with ExitStack() as held:
        ends = {}
        for name in (*EVENT_STREAMS, *DATA_STREAMS):
            try:
                writer = streams.writer(name)
            except StreamBusyError as error:
                raise StillAliveError(f"the run is still alive: {error}") from None
            held.callback(writer.close)
            ends[name] = writer.end
        check_covered(streams, position, ends)
        streams.sync((*EVENT_STREAMS, *DATA_STREAMS))  # `ends` says what they hold
        checkpoints.discard_after(position.version)  # first: they belong to the history that is undone
        kept = [checkpoint.rollouts_offset for checkpoint in checkpoints.complete_checkpoints()]
        resumed = resumption(streams, position, ends, min(kept, default=None))
        launcher.append(resumed)
        streams.sync(["launcher_events"])
    return resumed


def resume_from_newest(streams: Streams, launcher: StreamWriter, run_dir: Path) -> Resumed | None:
    """Writes down how the run resumes from its newest checkpoint. Returns None where the run has ended."""
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
    """Returns the version with which the training of this launch has ended; 0 if it has not."""
    begin = latest_resumption(streams).ends.get("trainer_events", 0)
    events = recorded(streams, "trainer_events", begin)
    return next((event.version for event in events if isinstance(event, TrainingDone)), 0)


def check_covered(streams: Streams, position: Position, ends: dict[str, int]) -> None:
    """Checks that the streams still hold what the checkpoint was made of.

    Streams on a server that was killed may end before that.
    """
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
    """Returns the record with which the run resumes from `position`."""
    accounts = accounts_of(streams)
    # Earlier code recorded them among the actor's events.
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
    """Returns the replayed, interrupted and rolled-back groups. `sizes`: rollouts of each complete group."""
    found = dict.fromkeys(sizes, 0)
    rolled_back = set()
    for rollout in rollouts:
        # What a server or a judge failed at may have ended with the run: it is not held against the group.
        if rollout.group_id in sizes and not rollout.failed_by_infrastructure:
            found[rollout.group_id] += 1
            if max(rollout.versions, default=0) > version:
                rolled_back.add(rollout.group_id)
    rest = [group for group in sizes if group not in rolled_back]
    whole = [group for group in rest if found[group] == sizes[group]]
    return whole, [group for group in rest if found[group] < sizes[group]], sorted(rolled_back)
