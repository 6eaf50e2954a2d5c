"""Starts a run that was prepared: opens its streams, and resumes it if it has begun before.

Called by `run.py`.
"""

import shutil
from contextlib import ExitStack, closing

from contracts.support.files import remove_unfinished
from pipelinerl.config import save_config
from pipelinerl.launcher.checking.same_problems import keep_problems
from pipelinerl.launcher.prepare import Prepared
from pipelinerl.launcher.resume import describe, launcher_events, resume
from pipelinerl.launcher.run_directory import make_run_dir, point_latest_at
from pipelinerl.launcher.run_to_end import run_to_end
from pipelinerl.launcher.supervising.own_redis import OwnRedis
from pipelinerl.launcher.supervising.scaling import forget_what_was_asked
from pipelinerl.streams.of_run import open_streams
from pipelinerl.training.checkpoints import Checkpoints


def start_run(prepared: Prepared) -> int:
    """Runs the jobs to their end, from the position that the run resumes from if there is one.

    Returns the exit status of the run.
    """
    config, run_dir, planner, *_ = prepared.placed
    location = prepared.location
    make_run_dir(run_dir)
    with ExitStack() as held:
        if location.server:
            held.enter_context(location.server)
        redis = held.enter_context(OwnRedis(location.server, config.restarts.services))
        streams = open_streams(config, run_dir, location.url)
        events = held.enter_context(closing(launcher_events(streams)))  # a run has one launcher
        forget_what_was_asked(run_dir)
        remove_unfinished(run_dir)
        if prepared.position:
            print(describe(resume(streams, events, Checkpoints(run_dir), prepared.position)))
            for of_the_stop in ("summary.json", "reward.png"):
                (run_dir / of_the_stop).unlink(missing_ok=True)
        held.enter_context(planner.transport.opened(planner.launch({})))
        if socket := planner.judging_socket:
            held.callback(shutil.rmtree, socket.parent, ignore_errors=True)
        settled = {"run_dir": str(run_dir), "resume": False}
        keep_problems(run_dir, prepared.problems)
        save_config(config.model_copy(update=settled), run_dir / "config.yaml")
        point_latest_at(run_dir)
        return run_to_end(prepared.placed, streams, events, redis)
