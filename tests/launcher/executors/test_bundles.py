"""What fits on the nodes of a cluster, without one."""

from extensions.cluster.on_ray.nodes import Node, fits, too_large
from pipelinerl.launcher.executors.base import ResourceRequest
from pipelinerl.launcher.executors.bundles import Resources, groups_of

RANKS = [ResourceRequest(f"trainer-{i}", "workers", f"trainer-{i}", cpus=1, gpus=1) for i in range(4)]
SERVERS = [ResourceRequest(f"server-{i}", f"server-{i}", f"server-{i}", cpus=1, gpus=4) for i in range(3)]


def node(number: int, gpus: float, drains_at: float | None = None) -> Node:
    return Node(f"{number:06}", "vm", Resources(16, 8), Resources(16, gpus), drains_at)


def test_what_is_large_comes_first():
    assert [*groups_of([*SERVERS, *RANKS])] == ["workers", "server-0", "server-1", "server-2"]


def test_groups_fill_the_nodes_of_a_cluster():
    requests = [*SERVERS, *RANKS]
    assert fits(requests, [node(0, 8), node(1, 8)]) == "fits now: 4 of 4 groups"
    waits = "server-2 waits for {GPU: 4, CPU: 1}"
    assert fits(requests, [node(0, 8), node(1, 4)]) == f"fits now: 3 of 4 groups; {waits}"
    assert fits(requests, [node(0, 8), node(1, 4), node(2, 8, drains_at=0)]).endswith(waits)


def test_a_group_is_placed_as_a_whole_or_not_at_all():
    requests = [*RANKS, SERVERS[0]]
    words = fits(requests, [node(0, 3)])
    assert words.startswith("fits now: 0 of 2 groups; workers waits for 4 x {GPU: 1, CPU: 1}; server-0")
    words = fits(requests, [node(0, 2), node(1, 4)])
    assert words == "fits now: 1 of 2 groups; server-0 waits for {GPU: 4, CPU: 1}"


def test_what_is_larger_than_every_node_never_fits():
    kinds = [Resources(16, 8), Resources(2, 0)]
    assert too_large([*RANKS, *SERVERS], kinds) == []
    large = [ResourceRequest(f"server-{i}", f"server-{i}", f"server-{i}", cpus=1, gpus=16) for i in range(2)]
    have = "and the nodes of the Ray cluster have {GPU: 8, CPU: 16}, {CPU: 2}"
    assert too_large([*RANKS, *large], kinds) == [
        f"server-{i} needs {{GPU: 16, CPU: 1}} on one node, {have}" for i in range(2)
    ]
