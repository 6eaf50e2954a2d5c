"""The nodes of a cluster: a thread that polls them, and which bundles fit on them. Does not import ray."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pipelinerl.launcher.executors.base import ResourceRequest
from pipelinerl.launcher.executors.bundles import Resources, bundles_of, every_bundle_of, groups_of, in_words

NAMED_NODES = 8  # the most nodes named in a message
EVERY_S = 1.0
FRESH_S = 5.0  # for so long after an answer, a call is not expected to block
SILENT_S = 20.0  # after so long without an answer, the head is lost; Ray would end this process after 60 s


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
    sizes = sorted({(kind.gpus, kind.cpus) for kind in kinds}, reverse=True)
    largest = ", ".join(str(Resources(cpus, gpus)) for gpus, cpus in sizes) or "nothing"
    have = f"and the nodes of the Ray cluster have {largest}"
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


class View(NamedTuple):
    """An answer of the head."""

    nodes: list[Node]  # living nodes
    could_be_added: list[Resources]  # kinds of nodes that an autoscaler may start


class Watch:
    """Polls the head once a second, in a thread, because the call can block. view: the last answer."""

    def __init__(self, fetch: Callable[[], View]):
        self._fetch = fetch
        self.view = fetch()
        self._answered_at = time.monotonic()
        self._silence_s = 0.0
        self._checked_at = self._answered_at
        self._stopped = threading.Event()
        threading.Thread(target=self._poll, daemon=True).start()

    def is_fresh(self) -> bool:
        """Returns True if the head has answered within FRESH_S."""
        return time.monotonic() - self._answered_at < FRESH_S

    def is_silent(self) -> bool:
        """Returns True if the head has not answered for SILENT_S.

        Only time between calls of this method counts, because this process may have been stopped.
        """
        now = time.monotonic()
        self._silence_s += min(now - self._checked_at, EVERY_S)
        self._checked_at = now
        return self._silence_s > SILENT_S

    def stop(self) -> None:
        self._stopped.set()

    def _poll(self) -> None:
        while not self._stopped.wait(EVERY_S):
            try:
                self.view = self._fetch()
            except Exception:  # Ray raises many kinds of errors; all count as no answer
                continue
            self._answered_at = time.monotonic()
            self._silence_s = 0.0
