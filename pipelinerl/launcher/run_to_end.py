"""Runs the jobs of a run to their end, reports on it, and decides its exit status.

Called by `run.py`, once the streams are open.
"""

import time

from contracts.support.messages import one_line
from pipelinerl.errors import PlanError
from pipelinerl.launcher import interruptions
from pipelinerl.launcher.disk_watch import DiskWatch
from pipelinerl.launcher.full_disk import naming_full_disk, told
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.placing import PlacedRun
from pipelinerl.launcher.resume import done_version
from pipelinerl.launcher.supervising.fates import JobFailedError
from pipelinerl.launcher.supervising.own_redis import OwnRedis
from pipelinerl.launcher.supervising.supervisor import Supervisor
from pipelinerl.report.console import ConsoleView
from pipelinerl.report.wall_time import Launch
from pipelinerl.streams import StreamError, Streams, StreamWriter
from pipelinerl.streams.events import valid_results
from pipelinerl.training.checkpoints import Checkpoints


def run_to_end(placed: PlacedRun, streams: Streams, events: StreamWriter, redis: OwnRedis) -> int:
    """Supervises the jobs, reports on the run, and returns its exit status."""
    began = time.time()
    ended = began  # when it was shown last: observers may take longer
    status = 0
    failed = None
    print(f"run directory: {placed.run_dir}")
    try:
        config = placed.config
        view = ConsoleView(placed.run_dir, config.max_steps, may_end_sooner=config.stop_at is not None)
        disk = DiskWatch(placed.run_dir)

        def show(serving: int) -> None:
            nonlocal ended
            view.update(serving)
            disk.look()
            ended = time.time()

        with naming_full_disk(placed.run_dir), view:
            Supervisor(placed, streams, events, redis).run(show)
    except (JobFailedError, PlanError, StreamError) as failure:
        failed = told(redis.failure or failure, placed.run_dir)
        say(failed)
        status = 1
    except KeyboardInterrupt:
        status = interruptions.STATUS
    if redis.failure:
        return status or 1
    errors = _report(placed, streams, Launch(began, ended), failed)
    if errors:
        say(errors)
    return status or (1 if errors else 0)


def _report(placed: PlacedRun, streams: Streams, launch: Launch, failed: str | None) -> str | None:
    """Writes what is left of the run beside its records. Returns what is wrong with them, or None.

    failed: why the run failed.
    """
    from pipelinerl.report.summary import report  # with what draws, for which a run has no use before

    try:
        with naming_full_disk(placed.run_dir):
            summary = report(placed.run_dir, streams, launch, failed)
    except (PlanError, StreamError, OSError) as error:
        return f"no report: {one_line(error)}"
    _describe_final_model(placed, streams)
    return "; ".join(summary["accounting_errors"]) or None


def _describe_final_model(placed: PlacedRun, streams: Streams) -> None:
    """Writes the model card of the weights with which the run has ended, if it has."""
    from pipelinerl.report.model_card import ModelCardError, write_model_card

    final = Checkpoints(placed.run_dir).final
    try:
        version = done_version(streams)
        if version and final.is_dir():
            write_model_card(final, placed.config, version, valid_results(streams))
    except (ModelCardError, StreamError, OSError) as error:
        say(one_line(error))
