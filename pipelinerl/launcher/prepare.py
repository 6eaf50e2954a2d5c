"""Checks a run and plans its jobs, once: a plan is printed from the result, or a run is started from it.

Called by `run.py`. The checks import whatever the configuration names, so they are made in a forked process
that is gone before the run begins.
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
from pipelinerl.config import RunConfig
from pipelinerl.launcher.checking.model_source import Model
from pipelinerl.launcher.checking.same_problems import Problems
from pipelinerl.launcher.executors.named import executor_of
from pipelinerl.launcher.forked import in_forked
from pipelinerl.launcher.full_disk import naming_full_disk
from pipelinerl.launcher.jobs import Job, JobPlanner
from pipelinerl.launcher.placing import PlacedRun, anywhere, place
from pipelinerl.launcher.preparation import checked, with_model_here
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
        check = partial(checked, config, run_dir if position else None)
        config, model, problems = check() if config.plan else in_forked(check)
        executor = held.enter_context(closing(executor_of(config)))
        members = members_of(config)
        asks_none = config.plan and executor.spans_nodes  # a plan needs no cluster
        location = resolve_streams(config, run_dir, LOOPBACK if asks_none else executor.address)
        slots = anywhere(members) if asks_none else place(config, executor, members)
        if not config.plan:
            config = with_model_here(config, model, executor.may_fork)
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
