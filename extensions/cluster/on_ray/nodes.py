"""The nodes of a cluster, and which bundles fit on them. Pure computation, without ray."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipelinerl.launcher.executors.base import ResourceRequest
from pipelinerl.launcher.executors.bundles import (
    Resources,
    bundles_of,
    every_bundle_of,
    groups_of,
    in_words,
)

NAMED_NODES = 8  # the most nodes named in a message


@dataclass(frozen=True)
class Node:
    """A living node."""

    id: str
    host: str
    total: Resources
    free: Resources
    drains_at: float | None = None  # time.time() at which it ends; 0 if the time is not known

    @property
    def name(self) -> str:
        return node_name(self.host, self.id)

    def __str__(self) -> str:
        draining = ", draining" if self.drains_at is not None else ""
        return f"{self.name}: {self.free} of {self.total} free{draining}"


def node_name(host: str, node_id: str) -> str:
    """Returns a node's name for messages, with its id: several nodes may have the same host name."""
    return f"{host} ({node_id[:6]})"


def free_in_words(nodes: Iterable[Node]) -> str:
    """Returns a clause such as `free on 2 nodes: a (01ab23) {GPU: 1, CPU: 3}, b (45cd67) {}`."""
    nodes = list(nodes)
    named = ", ".join(f"{node.name} {node.free}" for node in nodes[:NAMED_NODES])
    more = ", ..." if len(nodes) > NAMED_NODES else ""
    return f"free on {len(nodes)} node{'s' * (len(nodes) != 1)}: {named}{more}"


def largest_in_words(kinds: Iterable[Resources]) -> str:
    """Returns the different sizes of nodes as text, largest first."""
    sizes = sorted({(kind.gpus, kind.cpus) for kind in kinds}, reverse=True)
    return ", ".join(str(Resources(cpus, gpus)) for gpus, cpus in sizes) or "nothing"


def capacity(nodes: Iterable[Node]) -> str:
    """Returns a clause such as `5 nodes, 40 GPUs (38 free), 1 draining`."""
    nodes = list(nodes)
    gpus = sum(node.total.gpus for node in nodes)
    cpus = sum(node.total.cpus for node in nodes)
    counts = [
        f"{len(nodes)} node{'s' * (len(nodes) != 1)}",
        f"{gpus:g} GPUs ({sum(node.free.gpus for node in nodes):g} free)",
        f"{cpus:g} CPUs ({sum(node.free.cpus for node in nodes):g} free)",
    ]
    if draining := sum(node.drains_at is not None for node in nodes):
        counts.append(f"{draining} draining")
    return ", ".join(counts)


def too_large(requests: Iterable[ResourceRequest], kinds: Iterable[Resources]) -> list[str]:
    """Returns a clause for each bundle that is larger than every kind of node."""
    kinds = list(kinds)
    have = f"and the nodes of the Ray cluster have {largest_in_words(kinds)}"
    return [
        f"{name} needs {needs} on one node, {have}"
        for name, needs in every_bundle_of(requests)
        if not any(kind.holds(needs) for kind in kinds)
    ]


def fits(requests: Iterable[ResourceRequest], nodes: Iterable[Node]) -> str:
    """Returns a clause that tells which groups could be placed now, if nobody else takes free resources."""
    free = [node.free for node in nodes if node.drains_at is None]
    groups = groups_of(requests)
    waiting = []
    for name, members in groups.items():
        needs = bundles_of(members)
        left = after(needs.values(), free)
        if left is None:
            waiting.append(f"{name} waits for {in_words(needs.values())}")
        else:
            free = left
    return "; ".join([f"fits now: {len(groups) - len(waiting)} of {len(groups)} groups", *waiting])


def after(needs: Iterable[Resources], free: list[Resources]) -> list[Resources] | None:
    """Returns what is free once all of these are placed, or None if they do not fit."""
    left = list(free)
    for bundle in sorted(needs, key=lambda bundle: (-bundle.gpus, -bundle.cpus)):
        holding = [i for i, node in enumerate(left) if node.holds(bundle)]
        if not holding:
            return None
        fullest = min(holding, key=lambda i: (left[i].gpus, left[i].cpus))
        left[fullest] -= bundle
    return left
