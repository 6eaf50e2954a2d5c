"""Launch a run: compose the configuration, check it, plan the jobs, run and supervise them.

    python launch.py                                  the demo, on a CPU
    python launch.py batch_size=256 max_lag=1         any key; --help lists them
    python launch.py inference=scripted plan=true     print the jobs and start nothing
    python launch.py run_dir=runs/latest resume=true  resume a run that stopped, from its last checkpoint

A run over several machines is placed on a Ray cluster (executor=ray): docs/cluster.md.

Writes to `run_dir`: the resolved config, one log per process, streams, metrics, checkpoints and
`summary.json`. Exit status 0 means that the run did what it was asked, and 1 that it failed. 2 means that it
was refused before anything started, and 130 that it was interrupted.
"""

from pipelinerl.launcher import interruptions
from pipelinerl.launcher.outputs import outlast_readers

if __name__ == "__main__":
    interruptions.end_at_once()  # the imports take seconds
    outlast_readers()

import os
import secrets
import shutil
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

from pydantic import ValidationError

try:
    from pipelinerl.launcher.compose import compose_config
    from pipelinerl.launcher.describe_keys import describe_keys
    from pipelinerl.streams.events import valid_results
    from pipelinerl.streams.of_run import StreamsLocation, open_streams, resolve_streams
    from pipelinerl.training.checkpoints import Checkpoints, Position
except ModuleNotFoundError as error:
    sys.exit(f"launch.py: {error}; a run needs: pip install -e '.[demo]'")
from contracts.support.files import remove_unfinished
from contracts.support.messages import one_line
from contracts.support.token import TokenError, token_of
from pipelinerl.config import RunConfig, save_config
from pipelinerl.errors import PlanError
from pipelinerl.launcher.full_disk import naming_full_disk, told
from pipelinerl.launcher.jobs import JobPlanner
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.own_redis import OwnRedis
from pipelinerl.launcher.placing import PlacedRun, executor_of, place
from pipelinerl.launcher.scaling import forget_what_was_asked
from pipelinerl.launcher.wants import members_of
from pipelinerl.paths import OWNER_ALONE
from pipelinerl.streams import StreamError, Streams, StreamWriter


def main(overrides: list[str]) -> int:
    """Runs the command and returns its exit status."""
    sys.path.append(os.getcwd())  # parts of one's own, from where one works
    try:
        if {"-h", "--help"} & {*overrides}:
            print(__doc__, *describe_keys(), sep="\n")
            return 0
        config = compose_config(overrides)
        return run(config)
    except (PlanError, ValidationError, StreamError, TokenError) as error:
        say(one_line(error))
        return 2
    except KeyboardInterrupt:
        say("interrupted")
        return interruptions.STATUS


def run(config: RunConfig) -> int:
    """Plans the run, places its jobs and supervises them; returns the exit status."""
    from pipelinerl.launcher.describe_plan import describe_plan
    from pipelinerl.launcher.forked import in_forked
    from pipelinerl.launcher.preparation import checked, with_model_here

    token = token_of(None) or secrets.token_hex(16)
    run_dir = Path(config.run_dir or time.strftime("runs/%Y%m%d-%H%M%S")).resolve()
    position = resume_position(run_dir, config)
    if config.plan:
        config, model = checked(config)
        print(*describe_plan(config, run_dir, model), sep="\n")
        return 0
    interruptions.interrupt()
    config, model = in_forked(lambda: checked(config))
    with naming_full_disk(run_dir), closing(executor_of(config)) as executor:
        location = resolve_streams(config, run_dir, executor.address)
        members = members_of(config)
        slots = place(config, executor, members)
        config = with_model_here(config, model)
        config = config.model_copy(update={"streams": location.options})
        planner = JobPlanner(config, run_dir, token, location.url)
        planner.plan(slots)  # refuses what cannot be started
        run_dir.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
        return start_run(PlacedRun(config, run_dir, planner, executor, slots), location, position)


def resume_position(run_dir: Path, config: RunConfig) -> Position | None:
    """Returns the checkpoint position that the run resumes from, or None if the run is new."""
    from pipelinerl.launcher.checks import check_run_dir
    from pipelinerl.launcher.resume import choose

    if config.resume is not False:
        return choose(run_dir, Checkpoints(run_dir), config.resume, config.max_steps, config.stop_at)
    check_run_dir(run_dir)
    return None


def start_run(placed: PlacedRun, location: StreamsLocation, position: Position | None) -> int:
    """Opens the streams, resumes at `position` if there is one, and returns the exit status of the run."""
    from pipelinerl.launcher.resume import describe, launcher_events, resume

    config = placed.config
    run_dir = placed.run_dir
    with ExitStack() as held:
        if location.server:
            held.enter_context(location.server)
        redis = held.enter_context(OwnRedis(location.server, config.restarts.services))
        streams = open_streams(config, run_dir, location.url)
        events = held.enter_context(closing(launcher_events(streams)))  # a run has one launcher
        forget_what_was_asked(run_dir)
        remove_unfinished(run_dir)
        if position:
            print(describe(resume(streams, events, Checkpoints(run_dir), position)))
            for of_the_stop in ("summary.json", "reward.png"):
                (run_dir / of_the_stop).unlink(missing_ok=True)
        if socket := placed.planner.judging_socket:
            held.callback(shutil.rmtree, socket.parent, ignore_errors=True)
        settled = {"run_dir": str(run_dir), "resume": False}
        save_config(config.model_copy(update=settled), run_dir / "config.yaml")
        point_latest_at(run_dir)
        return supervise(placed, streams, events, redis)


def supervise(placed: PlacedRun, streams: Streams, events: StreamWriter, redis: OwnRedis) -> int:
    """Runs the jobs to their end, reports on the run, and returns its exit status."""
    from pipelinerl.launcher.disk_watch import DiskWatch
    from pipelinerl.launcher.fates import JobFailedError
    from pipelinerl.launcher.supervisor import Supervisor
    from pipelinerl.report.console import ConsoleView

    began = time.monotonic()
    ended = began  # when it was shown last: observers may take longer
    status = 0
    print(f"run directory: {placed.run_dir}")
    try:
        view = ConsoleView(placed.run_dir, placed.config.max_steps)
        disk = DiskWatch(placed.run_dir)

        def show(serving: int) -> None:
            nonlocal ended
            view.update(serving)
            disk.look()
            ended = time.monotonic()

        with naming_full_disk(placed.run_dir), view:
            Supervisor(placed, streams, events, redis).run(show)
    except (JobFailedError, PlanError, StreamError) as failure:
        say(told(redis.failure or failure, placed.run_dir))
        status = 1
    except KeyboardInterrupt:
        status = interruptions.STATUS
    if redis.failure:
        return status or 1
    from pipelinerl.report.summary import report  # with what draws, for which a run has no use before

    try:
        with naming_full_disk(placed.run_dir):
            summary = report(placed.run_dir, streams, wall_s=ended - began)
    except (PlanError, StreamError, OSError) as error:
        say(f"no report: {one_line(error)}")
        return status or 1
    describe_final_model(placed, streams)
    if summary["accounting_errors"]:
        say("; ".join(summary["accounting_errors"]))
        status = status or 1
    return status


def describe_final_model(placed: PlacedRun, streams: Streams) -> None:
    """Writes the model card of the weights with which the run has ended, if it has."""
    from pipelinerl.launcher.resume import done_version
    from pipelinerl.report.model_card import ModelCardError, write_model_card

    final = Checkpoints(placed.run_dir).final
    try:
        version = done_version(streams)
        if version and final.is_dir():
            write_model_card(final, placed.config, version, valid_results(streams))
    except (ModelCardError, StreamError, OSError) as error:
        say(one_line(error))


def point_latest_at(run_dir: Path) -> None:
    """Replaces the link of an earlier run, and nothing else of that name."""
    latest = run_dir.parent / "latest"
    if latest.is_symlink():
        latest.unlink()
    if not latest.exists():
        latest.symlink_to(run_dir.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
