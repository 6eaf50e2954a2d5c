"""The nodes of a cluster, and what fits on them. It imports no engine and asks nobody."""

from collections.abc import Iterable
from dataclasses import dataclass

NAMED_NODES = 8  # in a message


@dataclass(frozen=True)
class Resources:
    cpus: float = 0.0
    gpus: float = 0.0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.cpus + other.cpus, self.gpus + other.gpus)

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(self.cpus - other.cpus, self.gpus - other.gpus)

    def holds(self, other: "Resources") -> bool:
        return self.cpus >= other.cpus and self.gpus >= other.gpus

    def __str__(self) -> str:
        named = [("GPU", self.gpus), ("CPU", self.cpus)]
        return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in named if amount) + "}"


@dataclass(frozen=True)
class Node:
    """A node that lives."""

    id: str
    host: str
    total: Resources
    free: Resources
    drains_at: float | None = None  # time.time() at which it ends; 0 where nobody said when

    @property
    def name(self) -> str:
        return node_name(self.host, self.id)

    def __str__(self) -> str:
        draining = ", draining" if self.drains_at is not None else ""
        return f"{self.name}: {self.free} of {self.total} free{draining}"


def node_name(host: str, node_id: str) -> str:
    """Returns what people call a node: machines may have one name, and a machine several nodes."""
    return f"{host} ({node_id[:6]})"


def free_in_words(nodes: Iterable[Node]) -> str:
    """Returns a clause such as `free on 2 nodes: a (01ab23) {GPU: 1, CPU: 3}, b (45cd67) {}`."""
    nodes = list(nodes)
    named = ", ".join(f"{node.name} {node.free}" for node in nodes[:NAMED_NODES])
    more = ", ..." if len(nodes) > NAMED_NODES else ""
    return f"free on {len(nodes)} node{'s' * (len(nodes) != 1)}: {named}{more}"


def largest_in_words(kinds: Iterable[Resources]) -> str:
    """Returns the different sizes of nodes, largest first."""
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
