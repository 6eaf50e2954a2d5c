"""Launch a run: compose the configuration, check it, plan the jobs, run and supervise them.

    python launch.py                                  the demo, on a CPU
    python launch.py batch_size=256 max_lag=1         any key of conf/config.yaml
    python launch.py inference=scripted plan=true     print the jobs and start nothing
    python launch.py run_dir=runs/latest resume=true  go on with a run that stopped, from its last checkpoint

Writes to `run_dir`: the resolved config, one log per process, streams, metrics, checkpoints and
`summary.json`. Exit status 0 means that the run did what it was asked; 1 that it failed; 2 that it
was refused before anything started; 130 that it was interrupted.
"""

import os
import secrets
import signal
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

from pydantic import ValidationError

try:
    from pipelinerl.compose import compose_config
    from pipelinerl.run_streams import StreamsPlace, open_streams, place_streams
except ModuleNotFoundError as error:
    sys.exit(f"launch.py: {error}; a run needs: pip install -e '.[demo]'")
from pipelinerl.config import ModelConfig, RunConfig, save_config
from pipelinerl.jobs import ROOT, Job, PlanError, plan_jobs
from pipelinerl.streams import StreamError, Streams

DEMO_MODELS = {"sums": ROOT / ".cache" / "demo_model", "thinking": ROOT / ".cache" / "thinking_model"}


def main(overrides: list[str]) -> int:
    if {"-h", "--help"} & {*overrides}:
        print(__doc__)
        return 0
    sys.path.append(os.getcwd())  # parts of one's own, from where one works
    signal.signal(signal.SIGTERM, interrupted)
    try:
        config = compose_config(overrides)
        return run(config)
    except (PlanError, ValidationError, StreamError) as error:
        print(f"launch.py: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("launch.py: interrupted", file=sys.stderr)
        return 130


def interrupted(*_: object) -> None:
    """As Ctrl-C, which a shell has its background jobs ignore."""
    raise KeyboardInterrupt


def run(config: RunConfig) -> int:
    from pipelinerl.checkpoints import Checkpoints
    from pipelinerl.checks import check_components, check_gpus, check_model, check_run_dir, needs_model
    from pipelinerl.resume import choose, describe, launcher_events, resume

    run_dir = Path(config.run_dir or time.strftime("runs/%Y%m%d-%H%M%S")).resolve()
    checkpoints, position = Checkpoints(run_dir), None
    if config.resume is False:
        check_run_dir(run_dir)
    else:
        position = choose(run_dir, checkpoints, config.resume, config.max_steps)
    check_components(config)
    demo_model = DEMO_MODELS[config.model.demo]
    model_path = Path(config.model.path or demo_model).absolute()
    model = ModelConfig(path=str(model_path), demo=config.model.demo)
    place = place_streams(config, run_dir)
    config = config.model_copy(update={"model": model, "streams": place.options})
    wants_model = needs_model(config)
    to_be_made = wants_model and model_path == demo_model
    if wants_model and (demo_model.exists() or not to_be_made):
        check_model(config)
    jobs = plan_jobs(config, run_dir, secrets.token_hex(16), place.url)
    if config.plan:
        print_plan(jobs, run_dir, place)
        return 0
    check_gpus(config)
    if to_be_made:
        make_demo_model(config.model.demo)
        check_model(config)
    run_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        if place.server:
            held.enter_context(place.server)
        streams = open_streams(config, run_dir, place.url)
        launcher = held.enter_context(closing(launcher_events(streams)))  # a run has one launcher
        if position:
            print(describe(resume(streams, launcher, checkpoints, position)))
            for of_the_stop in ("summary.json", "reward.png"):
                (run_dir / of_the_stop).unlink(missing_ok=True)
        settled = {"run_dir": str(run_dir), "resume": False}
        save_config(config.model_copy(update=settled), run_dir / "config.yaml")
        point_latest_at(run_dir)
        return supervise(config, jobs, run_dir, streams)


def supervise(config: RunConfig, jobs: list[Job], run_dir: Path, streams: Streams) -> int:
    from pipelinerl.console import ConsoleView
    from pipelinerl.report import report
    from pipelinerl.supervisor import JobFailed, Supervisor

    began, status = time.monotonic(), 0
    print(f"run directory: {run_dir}")
    try:
        with ConsoleView(run_dir, config.max_steps) as view:
            Supervisor(jobs, run_dir, config.world.stop_timeout_s).run(view.update)
    except JobFailed as failure:
        print(f"launch.py: {failure}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = 130
    try:
        summary = report(run_dir, streams, wall_s=time.monotonic() - began)
    except StreamError as error:
        print(f"launch.py: no report: {one_line(error)}", file=sys.stderr)
        return status or 1
    if summary["accounting_errors"]:
        print(f"launch.py: {'; '.join(summary['accounting_errors'])}", file=sys.stderr)
        status = status or 1
    return status


def make_demo_model(demo: str) -> None:
    """Returns at once where it has been made before."""
    from pipelinerl.demo_model.build import build, build_thinking

    if not DEMO_MODELS[demo].exists():
        print("making the demo model, once: a few minutes, more on busy cores", flush=True)
    seed = 2  # one with which the lessons are learnt well before they end
    build(DEMO_MODELS["sums"], seed)
    if demo == "thinking":
        build_thinking(DEMO_MODELS["thinking"], DEMO_MODELS["sums"], seed)


def print_plan(jobs: list[Job], run_dir: Path, place: StreamsPlace) -> None:
    print(f"run directory: {run_dir}")
    if place.server:
        print(f"{'redis':14} {'CPU':8} {' '.join(place.server.command)}")
    elif place.url:
        print(f"streams: {place.options.url}")
    for job in jobs:
        print(f"{job.name:14} {job.placement:8} {' '.join(job.command)}")


def point_latest_at(run_dir: Path) -> None:
    """Replaces the link of an earlier run, and nothing else of that name."""
    latest = run_dir.parent / "latest"
    if latest.is_symlink():
        latest.unlink()
    if not latest.exists():
        latest.symlink_to(run_dir.name)


def one_line(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    problems = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        problems.append(f"{place}: {message}" if place else message)
    return "; ".join(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
