"""Checks a run, places its jobs and plans them. A plan is printed from the result, or the run is started.

Called by `run.py` and by `plan.py`. The checks import the components that the configuration names, so they
run in a forked process, which ends before the run begins.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from contracts.support.addresses import LOOPBACK
from contracts.support.token import token_of
from pipelinerl.components import build_domain
from pipelinerl.config import ReferenceConfig, ResolvedRun, RunConfig
from pipelinerl.domains.judges import judging_of
from pipelinerl.errors import PlanError
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.launcher.checking.adopted import models_of
from pipelinerl.launcher.checking.components import (
    check_components,
    check_machine,
    check_observers,
    warn_of_decay,
)
from pipelinerl.launcher.checking.model import check_model, with_absolute_teacher
from pipelinerl.launcher.checking.model_source import Model, fetch_model, find_model, make_model
from pipelinerl.launcher.checking.nccl import check_nccl
from pipelinerl.launcher.checking.problems import Problems, check_problems, check_same
from pipelinerl.launcher.checking.room import check_room
from pipelinerl.launcher.checking.trial.start import try_components
from pipelinerl.launcher.executors.base import (
    Executor,
    JobState,
    Lost,
    Placed,
    Placement,
    Waiting,
    check_executor,
    executor_of,
)
from pipelinerl.launcher.forked import in_forked
from pipelinerl.launcher.jobs import Job, JobPlanner, PlacedRun
from pipelinerl.launcher.resource_requests import JobSpec, job_specs
from pipelinerl.launcher.resume import check_reference_kept, choose
from pipelinerl.launcher.run_directory import absolute, check_run_dir, naming_full_disk
from pipelinerl.launcher.terminal import print_message
from pipelinerl.streams.of_run import StreamsBackend, backend_of, locate_streams
from pipelinerl.training.checkpoints import Checkpoints, Position

UNKNOWN_NODE = "<its node>"  # in a plan
POLL_S = 0.1
REPORT_EVERY_S = 10.0  # while jobs wait for their placements


class Found(NamedTuple):
    """Results of the checks."""

    model: Model
    reference: ReferenceConfig | None  # with the absolute directory of a teacher
    judging: JudgingConfig  # with the verifiers of the domain
    problems: Problems | None  # None if a plan would have to fetch them


class Prepared(NamedTuple):
    """A run that was checked and can be started."""

    placed: PlacedRun
    jobs: Sequence[Job]
    found: Found
    streams: StreamsBackend
    position: Position | None  # the checkpoint to resume from; None for a new run


@contextmanager
def prepare(config: RunConfig) -> Iterator[Prepared]:
    """Yields the checked run. Its jobs are placed while the context lasts, and none is started.

    Makes or fetches the model unless the run is only planned. Raises PlanError, StreamError or TokenError for
    a run that cannot be started.
    """
    token = token_of(None) or secrets.token_hex(16)
    run_dir = absolute(Path(config.run_dir or time.strftime("runs/%Y%m%d-%H%M%S")))
    if config.inference.urls and not config.plan:
        models = models_of(config.inference.urls, token, config.resume is not False)
        inference = config.inference.model_copy(update={"models": models})
        config = config.model_copy(update={"inference": inference})
    with ExitStack() as stack:
        stack.enter_context(naming_full_disk(run_dir))
        position = _position(run_dir, config)
        # A plan is already made in a forked process.
        check = partial(_checked, config, run_dir, is_resumed=position is not None)
        found = check() if config.plan else in_forked(check)
        executor = stack.enter_context(closing(executor_of(config)))
        is_unplaced = config.plan and executor.spans_nodes  # a plan needs no cluster
        streams = locate_streams(config, run_dir, LOOPBACK if is_unplaced else executor.address)
        specs = job_specs(config, found.judging)
        placements = planned_placements(specs) if is_unplaced else place(config, executor, specs)
        if not config.plan:
            found = _with_model_here(config, run_dir, found, executor.may_fork)
        resolved = _resolved(config, run_dir, found, streams)
        planner = JobPlanner(resolved, run_dir, token, streams.environment)
        placed = PlacedRun(resolved, run_dir, planner, executor, placements)
        yield Prepared(placed, planner.plan(placements), found, streams, position)


def _position(run_dir: Path, config: RunConfig) -> Position | None:
    if config.resume is not False:
        checkpoints = Checkpoints(run_dir)
        position = choose(run_dir, checkpoints, config.resume, config.max_steps, config.stop_at)
        check_reference_kept(checkpoints, position.version, config.reference)
        return position
    check_run_dir(run_dir, will_be_made=not config.plan)
    return None


def _checked(config: RunConfig, run_dir: Path, is_resumed: bool) -> Found:
    backend_of(config.streams, Path())
    check_executor(config)
    try_components(config)
    check_components(config)
    check_observers(config, run_dir, is_resumed)
    check_machine(config)
    problems = check_problems(config)
    if is_resumed and problems:
        check_same(run_dir, problems)
    judging = judging_of(config.judging, build_domain(config))
    model = find_model(config)
    _check_model(config, model, run_dir)
    check_nccl(config)
    warn_of_decay(config)
    return Found(model, with_absolute_teacher(config.reference), judging, problems)


def _check_model(config: RunConfig, model: Model, run_dir: Path) -> None:
    check_model(config, model)
    if model.shape and not config.plan:
        check_room(config, model.shape, run_dir)


def _with_model_here(config: RunConfig, run_dir: Path, found: Found, may_fork: bool) -> Found:
    if found.model.state not in ("to be made", "on the hub"):
        return found

    def bring() -> Model:
        here = make_model(config) if found.model.state == "to be made" else fetch_model(found.model.path)
        if found.model.shape:  # by which the room was checked
            check_model(config, here)
        else:
            _check_model(config, here, run_dir)
        return here

    return found._replace(model=in_forked(bring) if may_fork else bring())


def _resolved(config: RunConfig, run_dir: Path, found: Found, streams: StreamsBackend) -> ResolvedRun:
    model = config.model.model_dump(by_alias=True) | {"path": found.model.path, "hub": found.model.hub}
    model["found_shape"] = found.model.shape and found.model.shape.model_dump()
    return ResolvedRun.of(
        config,
        run_dir=str(run_dir),
        resume=False,
        model=model,
        reference=found.reference,
        judging=found.judging,
        streams=streams.section,
    )


# --- placing the jobs -----------------------------------------------------------------------------


def place(config: RunConfig, executor: Executor, specs: Iterable[JobSpec]) -> dict[str, Placement]:
    """Waits until all jobs except servers beyond `world.servers_min` are placed. Raises PlanError."""
    specs = list(specs)
    executor.request(spec.request for spec in specs)
    began = time.monotonic()
    reported = began
    while True:
        states = executor.poll()
        waits = _waits_for(config, specs, states)
        if not waits:
            return {name: state.placement for name, state in states.items() if isinstance(state, Placed)}
        now = time.monotonic()
        if now - began > executor.place_timeout_s:
            raise PlanError(
                f"no place within executor.place_timeout_s={executor.place_timeout_s:g} s: {waits}"
            )
        if now - reported > REPORT_EVERY_S:
            print_message(waits)
            reported = now
        time.sleep(POLL_S)


def planned_placements(specs: Iterable[JobSpec]) -> dict[str, Placement]:
    """Returns a placement of each job on an unknown node, for a plan."""
    gpus = {request.name: f"x {request.gpus}" if request.gpus else "" for _, request in specs}
    return {
        request.name: Placement(UNKNOWN_NODE, UNKNOWN_NODE, request.port, gpus[request.name])
        for _, request in specs
    }


def _waits_for(config: RunConfig, specs: Iterable[JobSpec], states: Mapping[str, JobState]) -> str | None:
    """Returns a message that names the jobs without which the run cannot begin; None if it can."""
    waiting = {}
    lost = {}  # if the run begins without these servers, the supervisor requests them again
    placed = 0
    for role, request in specs:
        state = states[request.name]
        if isinstance(state, Lost):
            lost[request.name] = f"the place of {request.name} is lost: {state.why}"
            if role != "server":
                raise PlanError(lost[request.name])
        if isinstance(state, Waiting):
            waiting[request.name] = (role, state.needs)
        placed += role == "server" and isinstance(state, Placed)
    needed = [name for name, (role, _) in waiting.items() if role != "server"]
    if not needed and placed < config.servers_min:
        needed = [name for name, (role, _) in waiting.items() if role == "server"]
        if placed + len(needed) < config.servers_min:
            raise PlanError("; ".join(lost.values()))
    return f"{', '.join(needed)}: waiting for {waiting[needed[0]][1]}" if needed else None
