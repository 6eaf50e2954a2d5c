"""The Ray cluster of a run: the head fits only the workers, and each other job has its own node."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.chaos.plan import Shape
from benchmarks.ray_nodes import RayNodes

SPARE_NODES = 1  # for a server whose node is lost


@contextmanager
def cluster_of(shape: Shape) -> Iterator[RayNodes | None]:
    """Starts the cluster of a run for the block. Yields None if the run needs none."""
    if shape.executor == "local":
        yield None
        return
    actor_preprocessor = 2
    with RayNodes(head_cpus=actor_preprocessor + shape.judging + shape.ranks) as nodes:
        for _ in range(shape.servers + shape.reference + SPARE_NODES):
            start_node(nodes)
        yield nodes


def start_node(nodes: RayNodes) -> None:
    """Starts a node that fits one server."""
    nodes.start(cpus=1)
