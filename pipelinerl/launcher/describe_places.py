"""Where the jobs of a plan would be placed. Nothing is started, and no cluster is needed."""

from collections.abc import Iterable, Iterator

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import Executor, Want
from pipelinerl.launcher.executors.bundles import Resources, bundles_of, every_bundle_of, groups_of
from pipelinerl.launcher.wants import WORKERS, members_of


def describe_places(config: RunConfig, executor: Executor) -> Iterator[str]:
    """Yields what is reserved on a cluster, and how much of it there is."""
    if not executor.spans_nodes:
        return
    yield ""
    wants = wants_of(config)
    capacity = executor.capacity(wants)
    yield f"executor: {capacity.summary}"
    yield from (f"  {node}" for node in capacity.nodes)
    yield from capacity.fits
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
