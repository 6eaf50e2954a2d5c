"""Where the jobs of a plan would be placed. Nothing is started, and no cluster is needed."""

import os
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import Slot, Want
from pipelinerl.launcher.jobs import Job, JobPlanner
from pipelinerl.launcher.placing import executor_of, place
from pipelinerl.launcher.wants import WORKERS, Member, members_of
from pipelinerl.streams.of_run import StreamsLocation

ITS_NODE = "<its node>"


def planned_jobs(config: RunConfig, run_dir: Path, location: StreamsLocation) -> list[Job]:
    """Returns the jobs, on this machine in their places, on a cluster wherever they will be."""
    members = members_of(config)
    planner = JobPlanner(config, run_dir, secrets.token_hex(16), location.url)
    if config.executor.backend == "ray":
        return planner.plan({want.name: _somewhere(want) for _, want in members})
    with closing(executor_of(config)) as executor:
        return planner.plan(place(config, executor, members))


def _somewhere(want: Want) -> Slot:
    gpus = f"x {want.gpus}" if want.gpus else ""
    return Slot(ITS_NODE, ITS_NODE, want.port, gpus)


def describe_places(config: RunConfig) -> Iterator[str]:
    """Yields what is reserved on a cluster, and how much of it there is."""
    if config.executor.backend == "local":
        return
    yield ""
    members = members_of(config)
    if os.environ.get("RAY_ADDRESS"):
        with closing(executor_of(config)) as executor:
            capacity = executor.capacity()
            fits = executor.fits(want for _, want in members)
        yield f"executor: {capacity.summary}"
        yield from (f"  {node}" for node in capacity.nodes)
        yield fits
    else:
        yield "executor: ray, no cluster asked (RAY_ADDRESS is not set)"
    yield from _groups(members)
    if config.world.gpus:
        nodes = nodes_needed(config)
        yield f"at least {nodes} nodes of {config.world.gpus} GPUs (world.gpus)"


def _groups(members: Iterable[Member]) -> Iterator[str]:
    """Yields a line for the workers, and one for each server."""
    bundles = bundles_of(members)
    workers = [needs for (group, _), needs in bundles.items() if group == WORKERS]
    total = {name: sum(needs[name] for needs in workers) for name in ("GPU", "CPU")}
    yield f"  {'workers':20} {_needs(total)} in {len(workers)} bundles"
    for (group, _), needs in bundles.items():
        if group != WORKERS:
            yield f"  {group:20} {_needs(needs)} on one node"


def bundles_of(members: Iterable[Member]) -> dict[tuple[str, str], dict[str, float]]:
    """Returns what each bundle reserves, by its group and its name."""
    bundles: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: {"GPU": 0, "CPU": 0})
    for _, want in members:
        needs = bundles[want.group, want.bundle]
        needs["GPU"] += want.gpus
        needs["CPU"] += want.cpus
    return bundles


def _needs(needs: dict[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {count:g}" for name, count in needs.items() if count) + "}"


def nodes_needed(config: RunConfig) -> int:
    """Returns how many nodes of `world.gpus` GPUs take all bundles. Raises PlanError for one too large."""
    free: list[float] = []
    bundles = bundles_of(members_of(config))
    for (_, name), needs in sorted(bundles.items(), key=lambda bundle: -bundle[1]["GPU"]):
        if needs["GPU"] > config.world.gpus:
            raise PlanError(
                f"{name} needs {needs['GPU']:g} GPUs of one node, and a node has {config.world.gpus} "
                "(world.gpus)"
            )
        found = next((i for i, left in enumerate(free) if left >= needs["GPU"]), None)
        if found is None:
            free.append(config.world.gpus)
            found = -1
        free[found] -= needs["GPU"]
    return len(free)
