"""Checks a run and plans its jobs, once: a plan is printed from the result, or a run is started from it.

Called by `run.py` and by `plan.py`. The checks import whatever the configuration names, so they are made in a
forked process that is gone before the run begins.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from contracts.support.addresses import LOOPBACK
from contracts.support.token import token_of
from pipelinerl.components import build_domain, build_model_maker
from pipelinerl.config import ReferenceConfig, ResolvedRun, RunConfig
from pipelinerl.domains.judges import judging_of
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.launcher.checking.components import check_components, check_observers, tell_of_last_steps
from pipelinerl.launcher.checking.machine import check_machine
from pipelinerl.launcher.checking.model import check_model, with_absolute_teacher
from pipelinerl.launcher.checking.model_source import Model, fetch_model, find_model, model_in
from pipelinerl.launcher.checking.problems import Problems, check_problems, check_same
from pipelinerl.launcher.checking.trial.attempt import try_parts
from pipelinerl.launcher.executors.named import check_executor, executor_of
from pipelinerl.launcher.forked import in_forked
from pipelinerl.launcher.jobs import Job, JobPlanner
from pipelinerl.launcher.placing import PlacedRun, anywhere, place
from pipelinerl.launcher.resume import check_reference_kept, choose
from pipelinerl.launcher.run_directory import absolute, check_run_dir, naming_full_disk
from pipelinerl.launcher.wants import members_of
from pipelinerl.streams.of_run import StreamsBackend, backend_of, locate_streams
from pipelinerl.training.checkpoints import Checkpoints, Position


class Found(NamedTuple):
    """What the checks of a run have found, which its configuration does not say.

    reference: with the absolute directory of a teacher. judging: with the verifiers of the domain.
    problems: what the training problems are; None if a plan would have to fetch them.
    """

    model: Model
    reference: ReferenceConfig | None
    judging: JudgingConfig
    problems: Problems | None


class Prepared(NamedTuple):
    """A run that was checked and can be started.

    jobs: every process of the run, as it would be started now.
    position: the checkpoint position that the run resumes from, or None if the run is new.
    """

    placed: PlacedRun
    jobs: Sequence[Job]
    found: Found
    streams: StreamsBackend
    position: Position | None


@contextmanager
def prepare(config: RunConfig) -> Iterator[Prepared]:
    """Yields the run, checked and with its jobs in their places, which are held while the context lasts.

    It starts nothing, and makes or fetches the model unless the run is only planned. Raises PlanError,
    StreamError or TokenError for a run that cannot be started.
    """
    token = token_of(None) or secrets.token_hex(16)
    run_dir = absolute(Path(config.run_dir or time.strftime("runs/%Y%m%d-%H%M%S")))
    with ExitStack() as held:
        held.enter_context(naming_full_disk(run_dir))
        position = _position(run_dir, config)
        # A plan is made in a forked process of its own.
        check = partial(_checked, config, run_dir if position else None)
        found = check() if config.plan else in_forked(check)
        executor = held.enter_context(closing(executor_of(config)))
        asks_none = config.plan and executor.spans_nodes  # a plan needs no cluster
        streams = locate_streams(config, run_dir, LOOPBACK if asks_none else executor.address)
        members = members_of(config, found.judging)
        slots = anywhere(members) if asks_none else place(config, executor, members)
        if not config.plan:
            found = _with_model_here(config, found, executor.may_fork)
        resolved = _resolved(config, run_dir, found, streams)
        planner = JobPlanner(resolved, run_dir, token, streams.environment)
        placed = PlacedRun(resolved, run_dir, planner, executor, slots)
        yield Prepared(placed, planner.plan(slots), found, streams, position)


def _position(run_dir: Path, config: RunConfig) -> Position | None:
    if config.resume is not False:
        checkpoints = Checkpoints(run_dir)
        position = choose(run_dir, checkpoints, config.resume, config.max_steps, config.stop_at)
        check_reference_kept(checkpoints, position.version, config.reference)
        return position
    check_run_dir(run_dir, will_be_made=not config.plan)
    return None


def _checked(config: RunConfig, resumed: Path | None) -> Found:
    """Checks the run. Raises PlanError.

    resumed: directory of the run if it is resumed.
    """
    backend_of(config.streams, Path())
    check_executor(config)
    try_parts(config)
    check_components(config)
    check_observers(config)
    check_machine(config)
    problems = check_problems(config)
    if resumed and problems:
        check_same(resumed, problems)
    judging = judging_of(config.judging, build_domain(config))
    model = find_model(config)
    check_model(config, model)
    tell_of_last_steps(config)
    return Found(model, with_absolute_teacher(config.reference), judging, problems)


def _with_model_here(config: RunConfig, found: Found, may_fork: bool) -> Found:
    """Makes the model or fetches it if it is not here, and checks it.

    may_fork: whether this process may be forked.
    """
    if found.model.state not in ("to be made", "on the hub"):
        return found

    def bring() -> Model:
        here = _made(config) if found.model.state == "to be made" else fetch_model(found.model.path)
        check_model(config, here)
        return here

    return found._replace(model=in_forked(bring) if may_fork else bring())


def _made(config: RunConfig) -> Model:
    maker = build_model_maker(config)
    maker.make()
    return model_in(Path(maker.directory).absolute())


def _resolved(config: RunConfig, run_dir: Path, found: Found, streams: StreamsBackend) -> ResolvedRun:
    """Returns what the processes of the run get."""
    model = config.model.model_dump(by_alias=True) | {"path": found.model.path, "hub": found.model.hub}
    return ResolvedRun.of(
        config,
        run_dir=str(run_dir),
        resume=False,
        model=model,
        reference=found.reference,
        judging=found.judging,
        streams=streams.section,
    )
