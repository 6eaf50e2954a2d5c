"""Where the jobs of a plan would be placed. Nothing is started, and no cluster is needed."""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import Slot, Want
from pipelinerl.launcher.executors.bundles import Resources, bundles_of, every_bundle_of, groups_of
from pipelinerl.launcher.jobs import Job, JobPlanner
from pipelinerl.launcher.placing import executor_of, place
from pipelinerl.launcher.wants import WORKERS, members_of
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
    wants = wants_of(config)
    if os.environ.get("RAY_ADDRESS"):
        with closing(executor_of(config)) as executor:
            capacity = executor.capacity(wants)
        yield f"executor: {capacity.summary}"
        yield from (f"  {node}" for node in capacity.nodes)
        yield from capacity.fits
    else:
        yield "executor: ray, no cluster asked (RAY_ADDRESS is not set)"
    yield from _groups(wants)
    if config.world.gpus:
        nodes = nodes_needed(config)
        yield f"at least {nodes} nodes of {config.world.gpus} GPUs (world.gpus)"


def wants_of(config: RunConfig) -> list[Want]:
    return [want for _, want in members_of(config)]


def _groups(wants: Iterable[Want]) -> Iterator[str]:
    """Yields a line for the workers, and one for each server."""
    for group, members in groups_of(wants).items():
        bundles = bundles_of(members).values()
        where = f"in {len(bundles)} bundles" if group == WORKERS else "on one node"
        yield f"  {group:20} {sum(bundles, Resources())} {where}"


def nodes_needed(config: RunConfig) -> int:
    """Returns how many nodes of `world.gpus` GPUs take all bundles. Raises PlanError for one too large."""
    free: list[float] = []
    for name, needs in sorted(every_bundle_of(wants_of(config)), key=lambda bundle: -bundle[1].gpus):
        if needs.gpus > config.world.gpus:
            raise PlanError(
                f"{name} needs {needs.gpus:g} GPUs of one node, and a node has {config.world.gpus} "
                "(world.gpus)"
            )
        found = next((i for i, left in enumerate(free) if left >= needs.gpus), None)
        if found is None:
            free.append(config.world.gpus)
            found = -1
        free[found] -= needs.gpus
    return len(free)
