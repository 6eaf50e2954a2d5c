"""Prepares a run, starts or resumes it, supervises its jobs, and reports on it. Called by `launch.py`."""

import shutil
import time
from contextlib import ExitStack, closing
from pathlib import Path

from contracts.support.files import remove_unfinished
from contracts.support.messages import one_line
from pipelinerl.components import checked_type
from pipelinerl.config import RunConfig, save_config
from pipelinerl.errors import PlanError
from pipelinerl.launcher import terminal
from pipelinerl.launcher.checking.problems import keep_problems
from pipelinerl.launcher.jobs import PlacedRun
from pipelinerl.launcher.prepare import Prepared, prepare
from pipelinerl.launcher.resume import check_there, describe, done_version, launcher_events, resume
from pipelinerl.launcher.run_directory import (
    DiskWatch,
    failure_message,
    make_run_dir,
    naming_full_disk,
    point_latest_at,
)
from pipelinerl.launcher.supervising.failures import JobFailedError
from pipelinerl.launcher.supervising.scaling import remove_scale_requests
from pipelinerl.launcher.supervising.supervisor import Supervisor
from pipelinerl.report.console import ConsoleView
from pipelinerl.report.one_problem import OneProblem
from pipelinerl.report.wall_time import Launch
from pipelinerl.streams import StreamError, Streams, StreamWriter
from pipelinerl.streams.events import valid_results
from pipelinerl.training.checkpoints import Checkpoints


def run(config: RunConfig, verbose: bool = False) -> int:
    """Runs the configuration, and returns the exit status. verbose: prints all figures at the end."""
    terminal.raise_on_signal()
    with prepare(config) as prepared:
        return _start(prepared, verbose)


def _start(prepared: Prepared, verbose: bool) -> int:
    """Opens the streams, resumes the run if it was stopped, and runs the jobs to their end."""
    config, run_dir, planner, *_ = prepared.placed
    make_run_dir(run_dir)
    with ExitStack() as stack:
        if server := prepared.streams.server:
            stack.enter_context(server)
        opened = prepared.streams.open()
        streams = checked_type("streams", config.streams, "open", opened, Streams)
        events = stack.enter_context(closing(launcher_events(streams)))  # a run has one launcher
        remove_scale_requests(run_dir)
        remove_unfinished(run_dir)
        if prepared.position:
            check_there(Checkpoints(run_dir), prepared.position)  # now that nobody else can remove it
            print(describe(resume(streams, events, Checkpoints(run_dir), prepared.position)))
            for name in ("summary.json", "reward.png"):
                (run_dir / name).unlink(missing_ok=True)
        stack.enter_context(planner.transport.opened(planner.launch({})))
        if socket := planner.judging_socket:
            stack.callback(shutil.rmtree, socket.parent, ignore_errors=True)
        keep_problems(run_dir, prepared.found.problems)
        save_config(config, run_dir / "config.yaml")
        point_latest_at(run_dir)
        return _run_to_end(prepared, streams, events, verbose)


def _run_to_end(prepared: Prepared, streams: Streams, events: StreamWriter, verbose: bool) -> int:
    placed = prepared.placed
    server = prepared.streams.server
    began = time.time()
    ended = began  # time of the last view: observers may end later
    status = 0
    failed = None
    print(f"run directory: {placed.run_dir}")
    try:
        config = placed.config
        stop_at = None if config.stop_at is None else config.stop_at.success
        problem = OneProblem(streams, Path(config.model.path or placed.run_dir))
        view = ConsoleView(placed.run_dir, config.max_steps, stop_at, problem)
        disk = DiskWatch(placed.run_dir)

        def show(serving: int) -> None:
            nonlocal ended
            view.update(serving)
            disk.check()
            ended = time.time()

        with naming_full_disk(placed.run_dir), view:
            Supervisor(placed, streams, events, server).run(show)
    except (JobFailedError, PlanError, StreamError) as failure:
        failed = failure_message((server and server.failure) or failure, placed.run_dir)
        status = 1
    except KeyboardInterrupt:
        status = terminal.INTERRUPTED
    errors = None
    if not (server and server.failure):
        errors = _report(placed, streams, Launch(began, ended), verbose, failed)
    for message in filter(None, (errors, failed)):  # last, so that it is seen
        terminal.print_message(message)
    return status or (1 if errors else 0)


def _report(
    placed: PlacedRun, streams: Streams, launch: Launch, verbose: bool, failed: str | None
) -> str | None:
    """Writes summary, plot and model card. Returns errors of the accounting.

    verbose: prints all figures. failed: why the run failed, or None.
    """
    from pipelinerl.report.summary import report  # imports the plotting library

    try:
        with naming_full_disk(placed.run_dir):
            summary = report(placed.run_dir, streams, launch, verbose, failed)
    except (PlanError, StreamError, OSError) as error:
        return f"no report: {one_line(error)}"
    _describe_final_model(placed, streams)
    return "; ".join(summary["accounting_errors"]) or None


def _describe_final_model(placed: PlacedRun, streams: Streams) -> None:
    """Writes the model card of the final weights, if training is done."""
    from pipelinerl.report.model_card import ModelCardError, write_model_card

    final = Checkpoints(placed.run_dir).final
    try:
        version = done_version(streams)
        if version and final.is_dir():
            write_model_card(final, placed.config, version, valid_results(streams))
    except (ModelCardError, StreamError, OSError) as error:
        terminal.print_message(one_line(error))
