"""Launch a run: compose the configuration, check it, plan the jobs, run and supervise them.

    python launch.py                                  the demo, on a CPU
    python launch.py batch_size=256 max_lag=1         any key; --help lists them
    python launch.py inference=scripted plan=true     print the jobs and start nothing
    python launch.py run_dir=runs/latest resume=true  resume a run that stopped, from its last checkpoint

A run over several machines (world.nodes) has a launcher on each, started with the same command by torchrun or
srun: docs/several-nodes.md.

Writes to `run_dir`: the resolved config, one log per process, streams, metrics, checkpoints and
`summary.json`. Exit status 0 means that the run did what it was asked; 1 that it failed; 2 that it
was refused before anything started; 130 that it was interrupted.
"""

import os
import secrets
import shutil
import signal
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

from pydantic import ValidationError

try:
    from pipelinerl.launcher.compose import compose_config
    from pipelinerl.launcher.describe_keys import describe_keys
    from pipelinerl.streams.of_run import StreamsLocation, open_streams, resolve_streams
    from pipelinerl.training.checkpoints import Checkpoints, Position
except ModuleNotFoundError as error:
    sys.exit(f"launch.py: {error}; a run needs: pip install -e '.[demo]'")
from contracts.records import ServerJoined
from contracts.support.files import remove_unfinished
from contracts.support.messages import one_line
from pipelinerl.addresses import in_url
from pipelinerl.config import RunConfig, save_config
from pipelinerl.demo_model import registry
from pipelinerl.errors import PlanError
from pipelinerl.judging.client import SOCKET_VARIABLE
from pipelinerl.launcher.jobs import Job, plan_jobs
from pipelinerl.launcher.model_source import Model, fetch_model, find_model, model_in
from pipelinerl.launcher.nodes import Nodes, meet
from pipelinerl.paths import OWNER_ALONE
from pipelinerl.streams import StreamError, Streams


def main(overrides: list[str]) -> int:
    """Runs the command and returns its exit status."""
    sys.path.append(os.getcwd())  # parts of one's own, from where one works
    signal.signal(signal.SIGTERM, interrupted)
    try:
        if {"-h", "--help"} & {*overrides}:
            print(__doc__, *describe_keys(), sep="\n")
            return 0
        config = compose_config(overrides)
        return run(config)
    except (PlanError, ValidationError, StreamError) as error:
        print(f"launch.py: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("launch.py: interrupted", file=sys.stderr)
        return 130


def interrupted(*_: object) -> None:
    """Handles SIGTERM as Ctrl-C, which a shell makes its background jobs ignore."""
    raise KeyboardInterrupt


def run(config: RunConfig) -> int:
    with meet(config) as nodes:
        if nodes.rank > 0:
            from pipelinerl.launcher.follow import follow

            return follow(config, nodes)
        status = run_head_node(config, nodes)
        nodes.say(status=status)
        return status


def run_head_node(config: RunConfig, nodes: Nodes) -> int:
    """Plans and supervises the run: the work of the only launcher, or of that of node 0."""
    from pipelinerl.components import build_domain, judging_of
    from pipelinerl.launcher.checks import check_components, check_machine, check_problems
    from pipelinerl.launcher.describe_plan import describe_plan
    from pipelinerl.launcher.lead import gather_hosts, wait_until_ready
    from pipelinerl.launcher.model_checks import check_model

    hosts = gather_hosts(config, nodes)
    run_dir = Path(config.run_dir or time.strftime("runs/%Y%m%d-%H%M%S")).resolve()
    position = resume_position(run_dir, config)
    check_components(config)
    check_machine(config)
    check_problems(config)
    config = config.model_copy(update={"judging": judging_of(config.judging, build_domain(config))})
    location = resolve_streams(config, run_dir, nodes.address)
    model = find_model(config, registry.DEMO_MODELS[config.model.demo].directory)
    config = model.of(config).model_copy(update={"streams": location.options})
    check_model(config, model)
    secret = {"token": secrets.token_hex(16), "redis_url": location.url}
    jobs = plan_jobs(config, run_dir, hosts, **secret)
    if config.plan:
        print(*describe_plan(config, jobs, run_dir, location, model), sep="\n")
        return 0
    if model.state in ("to be made", "on the hub"):
        model = make_or_fetch(model, config.model.demo)
        config = model.of(config)
        check_model(config, model)
        jobs = plan_jobs(config, run_dir, hosts, **secret)
    run_dir.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
    wait_until_ready(nodes, run_dir, model=model.path, hosts=hosts, **secret)
    return start_run(config, nodes, jobs, run_dir, location, position)


def resume_position(run_dir: Path, config: RunConfig) -> Position | None:
    """Returns the checkpoint position that the run resumes from, or None if the run is new."""
    from pipelinerl.launcher.checks import check_run_dir
    from pipelinerl.launcher.resume import choose

    if config.resume is not False:
        return choose(run_dir, Checkpoints(run_dir), config.resume, config.max_steps)
    check_run_dir(run_dir)
    return None


def start_run(
    config: RunConfig,
    nodes: Nodes,
    jobs: list[Job],
    run_dir: Path,
    location: StreamsLocation,
    position: Position | None,
) -> int:
    """Opens the streams, resumes at `position` if there is one, and returns the exit status of the run."""
    from pipelinerl.launcher.resume import describe, launcher_events, resume

    with ExitStack() as held:
        if location.server:
            held.enter_context(location.server)
        streams = open_streams(config, run_dir, location.url)
        launcher = held.enter_context(closing(launcher_events(streams)))  # a run has one launcher
        remove_unfinished(run_dir)
        if position:
            print(describe(resume(streams, launcher, Checkpoints(run_dir), position)))
            for of_the_stop in ("summary.json", "reward.png"):
                (run_dir / of_the_stop).unlink(missing_ok=True)
        for job in jobs:
            if job.role == "judging":
                held.callback(
                    shutil.rmtree, Path(job.environment[SOCKET_VARIABLE]).parent, ignore_errors=True
                )
        settled = {"run_dir": str(run_dir), "resume": False}
        save_config(config.model_copy(update=settled), run_dir / "config.yaml")
        point_latest_at(run_dir)
        for job in jobs:
            if job.role == "server":
                launcher.append(server_joined(job))
        nodes.say(begin=True)
        return supervise(config, nodes, jobs, run_dir, streams)


def server_joined(job: Job) -> ServerJoined:
    """Returns the event that the server of a job begins."""
    options = dict(zip(job.command, job.command[1:], strict=False))
    url = f"http://{in_url(options['--host'])}:{options['--port']}"
    return ServerJoined(name=job.name, url=url, node=str(job.node), engine=options["-m"])


def supervise(config: RunConfig, nodes: Nodes, jobs: list[Job], run_dir: Path, streams: Streams) -> int:
    """Runs this node's jobs to their end, reports on the run, and returns its exit status."""
    from pipelinerl.launcher.lead import Verdict, end_others
    from pipelinerl.launcher.supervisor import JobFailedError, Supervisor
    from pipelinerl.report.console import ConsoleView
    from pipelinerl.report.summary import report

    began = time.monotonic()
    status = 0
    print(f"run directory: {run_dir}")
    try:
        with ConsoleView(run_dir, config.max_steps) as view:
            own = [job for job in jobs if job.node == 0]
            Supervisor(own, run_dir, config.world.stop_timeout_s).run(Verdict(nodes, view.update))
    except JobFailedError as failure:
        print(f"launch.py: {failure}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = 130
    end_others(nodes, config.world.stop_timeout_s)
    try:
        summary = report(run_dir, streams, wall_s=time.monotonic() - began)
    except StreamError as error:
        print(f"launch.py: no report: {one_line(error)}", file=sys.stderr)
        return status or 1
    if summary["accounting_errors"]:
        print(f"launch.py: {'; '.join(summary['accounting_errors'])}", file=sys.stderr)
        status = status or 1
    return status


def make_or_fetch(model: Model, demo: str) -> Model:
    """Makes the demo model, or fetches the model from the hub."""
    if model.state == "on the hub":
        return fetch_model(model.path)
    registry.make_named(demo, Path(model.path))
    return model_in(Path(model.path))


def point_latest_at(run_dir: Path) -> None:
    """Replaces the link of an earlier run, and nothing else of that name."""
    latest = run_dir.parent / "latest"
    if latest.is_symlink():
        latest.unlink()
    if not latest.exists():
        latest.symlink_to(run_dir.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
