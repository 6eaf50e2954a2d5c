"""The Ray cluster of a run: its head has room for the workers alone, and each other job a node of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.chaos.plan import Shape
from benchmarks.ray_nodes import RayNodes

SPARE_NODES = 1  # on which a server is placed when its own is lost


@contextmanager
def cluster_of(shape: Shape) -> Iterator[RayNodes | None]:
    """Starts the cluster of a run for the block, or none where it needs none."""
    if shape.executor == "local":
        yield None
        return
    actor_preprocessor = 2
    with RayNodes(head_cpus=actor_preprocessor + shape.judging + shape.ranks) as nodes:
        for _ in range(shape.servers + shape.reference + SPARE_NODES):
            start_node(nodes)
        yield nodes


def start_node(nodes: RayNodes) -> None:
    """Starts a node with room for one server."""
    nodes.start(cpus=1)
