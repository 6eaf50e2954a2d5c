"""Where each job of a run is placed: on which node, and on which of its GPUs. Counts in, places out."""

from dataclasses import dataclass
from typing import NamedTuple

from pipelinerl.errors import PlanError


@dataclass(frozen=True)
class Place:
    node: int
    gpus: tuple[int, ...] = ()  # of the node's; none in a CPU plan


class Placement(NamedTuple):
    servers: list[Place]
    trainers: list[Place]  # by rank
    reference: Place | None


def place(
    nodes: int, gpus: int, servers: int, gpus_per_server: int, trainer_ranks: int, reference: bool
) -> Placement:
    """Returns each job's place. `gpus`: of each node, 0 for a CPU plan. Raises PlanError if they do not
    fit."""
    if gpus == 0:
        return _on_cpus(nodes, servers, trainer_ranks, reference)
    needed = (servers + reference) * gpus_per_server + trainer_ranks
    if needed > nodes * gpus:
        there = f"world.gpus is {gpus}" if nodes == 1 else f"{nodes} nodes have {gpus} each (world.gpus)"
        raise PlanError(f"the plan needs {needed} GPUs and {there}")
    free = [list(range(gpus)) for _ in range(nodes)]
    return Placement(
        [_take(free, gpus_per_server, "server") for _ in range(servers)],
        [_take(free, 1, "trainer rank") for _ in range(trainer_ranks)],
        _take(free, gpus_per_server, "reference server") if reference else None,
    )


def _take(free: list[list[int]], count: int, what: str) -> Place:
    """From the first node that has as many left: no job is on two."""
    for node, left in enumerate(free):
        if len(left) >= count:
            taken = left[:count]
            free[node] = left[count:]
            return Place(node, tuple(taken))
    raise PlanError(
        f"a {what} needs {count} GPUs of one node, and no node has as many left; "
        "take fewer servers, more world.nodes, or another inference.gpus_per_server"
    )


def _on_cpus(nodes: int, servers: int, trainer_ranks: int, reference: bool) -> Placement:
    """Servers in turn, ranks in blocks: neighbours among the ranks speak most to each other."""
    return Placement(
        [Place(server % nodes) for server in range(servers)],
        [Place(rank * nodes // trainer_ranks) for rank in range(trainer_ranks)],
        Place(0) if reference else None,
    )
