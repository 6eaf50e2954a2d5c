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
from pipelinerl.components import build_domain
from pipelinerl.config import RunConfig
from pipelinerl.demo_model import registry
from pipelinerl.domains.judges import judging_of
from pipelinerl.launcher.checking.components import check_components, check_observers, tell_of_last_steps
from pipelinerl.launcher.checking.machine import check_machine
from pipelinerl.launcher.checking.model import check_model, with_absolute_teacher
from pipelinerl.launcher.checking.model_source import Model, fetch_model, find_model, model_in
from pipelinerl.launcher.checking.problems import Problems, check_problems, check_same
from pipelinerl.launcher.checking.trial.named import has_own
from pipelinerl.launcher.executors.named import check_executor, executor_of
from pipelinerl.launcher.forked import in_forked
from pipelinerl.launcher.full_disk import naming_full_disk
from pipelinerl.launcher.jobs import Job, JobPlanner
from pipelinerl.launcher.placing import PlacedRun, anywhere, place
from pipelinerl.launcher.resume import check_reference_kept, choose
from pipelinerl.launcher.run_directory import check_run_dir, resolved
from pipelinerl.launcher.wants import members_of
from pipelinerl.streams.of_run import StreamsLocation, resolve_streams
from pipelinerl.training.checkpoints import Checkpoints, Position


class Prepared(NamedTuple):
    """A run that was checked and can be started.

    jobs: every process of the run, as it would be started now.
    position: the checkpoint position that the run resumes from, or None if the run is new.
    problems: what the training problems are; None if a plan would have to fetch them.
    """

    placed: PlacedRun
    jobs: Sequence[Job]
    model: Model
    location: StreamsLocation
    position: Position | None
    problems: Problems | None


@contextmanager
def prepare(config: RunConfig) -> Iterator[Prepared]:
    """Yields the run, checked and with its jobs in their places, which are held while the context lasts.

    It starts nothing, and makes or fetches the model unless the run is only planned. Raises PlanError,
    StreamError or TokenError for a run that cannot be started.
    """
    token = token_of(None) or secrets.token_hex(16)
    run_dir = resolved(Path(config.run_dir or time.strftime("runs/%Y%m%d-%H%M%S")))
    with ExitStack() as held:
        held.enter_context(naming_full_disk(run_dir))
        position = _position(run_dir, config)
        # A plan is made in a forked process of its own.
        check = partial(_checked, config, run_dir if position else None)
        config, model, problems = check() if config.plan else in_forked(check)
        executor = held.enter_context(closing(executor_of(config)))
        members = members_of(config)
        asks_none = config.plan and executor.spans_nodes  # a plan needs no cluster
        location = resolve_streams(config, run_dir, LOOPBACK if asks_none else executor.address)
        slots = anywhere(members) if asks_none else place(config, executor, members)
        if not config.plan:
            config = _with_model_here(config, model, executor.may_fork)
        config = config.model_copy(update={"streams": location.options})
        planner = JobPlanner(config, run_dir, token, location.url)
        jobs = planner.plan(slots)
        placed = PlacedRun(config, run_dir, planner, executor, slots)
        yield Prepared(placed, jobs, model, location, position, problems)


def _position(run_dir: Path, config: RunConfig) -> Position | None:
    if config.resume is not False:
        checkpoints = Checkpoints(run_dir)
        position = choose(run_dir, checkpoints, config.resume, config.max_steps, config.stop_at)
        check_reference_kept(checkpoints, position.version, config.reference)
        return position
    check_run_dir(run_dir, will_be_made=not config.plan)
    return None


class Checked(NamedTuple):
    """A run that was checked.

    problems: what its training problems are; None if a plan would have to fetch them.
    """

    config: RunConfig
    model: Model
    problems: Problems | None


def _checked(config: RunConfig, resumed: Path | None) -> Checked:
    """Checks the run, and returns its complete configuration. Raises PlanError.

    resumed: directory of the run if it is resumed.
    """
    check_executor(config)
    if has_own(config):
        from pipelinerl.launcher.checking.trial.attempt import try_parts  # it imports torch

        try_parts(config)
    check_components(config)
    check_observers(config)
    check_machine(config)
    problems = check_problems(config)
    if resumed and problems:
        check_same(resumed, problems)
    config = config.model_copy(update={"judging": judging_of(config.judging, build_domain(config))})
    config = with_absolute_teacher(config)
    model = find_model(config, registry.DEMO_MODELS[config.model.demo].directory)
    config = model.of(config)
    check_model(config, model)
    tell_of_last_steps(config)
    return Checked(config, model, problems)


def _with_model_here(config: RunConfig, model: Model, may_fork: bool) -> RunConfig:
    """Makes the model or fetches it if it is not here, and checks it; returns the run's configuration.

    may_fork: whether this process may be forked.
    """
    if model.state not in ("to be made", "on the hub"):
        return config

    def bring() -> RunConfig:
        here = _make_or_fetch(model, config.model.demo)
        check_model(here.of(config), here)
        return here.of(config)

    return in_forked(bring) if may_fork else bring()


def _make_or_fetch(model: Model, demo: str) -> Model:
    """Makes the demo model, or fetches the model from the hub."""
    if model.state == "on the hub":
        return fetch_model(model.path)
    registry.make_named(demo, Path(model.path))
    return model_in(Path(model.path))
