"""The launchers of a run, one on each node: how they meet, and what each knows of the others.

Each says facts of itself in a torch store at MASTER_ADDR:MASTER_PORT, a few times a second. Node 0 hears all
of them, the others hear node 0. Who falls silent for `world.node_timeout_s` is lost. All that a machine which
has vanished could hold up is in one thread, never in the way of what ends this node's jobs. A run of one node
has nobody to hear.
"""

import errno
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from contracts.support.messages import first_line, one_line
from pipelinerl.addresses import LOOPBACK, own_address
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError

PORT = 29500  # torch's own default
SAY_EVERY_S, POLL_S = 0.25, 0.05


class NodeFailed(PlanError):
    """What another node's launcher said when it ended, or that it is lost."""


class Nodes:
    """This launcher among those of the run."""

    def __init__(self, rank: int = 0, size: int = 1, address: str = LOOPBACK, timeout_s: float = 0.0):
        self.rank, self.address, self.timeout_s = rank, address, timeout_s
        self.held = ExitStack()  # what this node's jobs need as long as the launcher lives
        self.all = range(size)
        self.others = [other for other in self.all if other != rank] if rank == 0 else [0]  # who is heard
        self._said: dict[str, Any] = {}
        self._sent: dict[str, Any] | None = None
        self._heard: dict[int, dict[str, Any]] = {}
        self._heard_at = dict.fromkeys(self.others, time.monotonic())
        self._broken: str | None = None  # why nothing is exchanged any more
        self._thread: threading.Thread | None = None
        self._left = threading.Event()

    def say(self, **facts: object) -> None:
        self._said = self._said | facts

    def facts(self, node: int) -> dict[str, Any]:
        """All that it has said."""
        return self._said if node == self.rank else self._heard.get(node, {})

    def hear(self, node: int, fact: str) -> Any:
        """Wait for it. Raises NodeFailed when it cannot come."""
        self.wait(lambda: fact in self.facts(node) or any(map(self.trouble, self.others)))
        if fact not in self.facts(node):
            raise NodeFailed(next(filter(None, map(self.trouble, self.others))))
        return self.facts(node)[fact]

    def wait(self, condition: Callable[[], object], within_s: float = math.inf) -> None:
        deadline = time.monotonic() + within_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def trouble(self, node: int) -> str | None:
        return self.failure(node) or self.loss(node)

    def failure(self, node: int) -> str | None:
        """In its own words."""
        return self.facts(node).get("failure")

    def loss(self, node: int) -> str | None:
        """Why nothing more is to be expected of it."""
        if self._broken:
            return self._broken
        if time.monotonic() - self._heard_at[node] < self.timeout_s:
            return None
        silent = f"within world.node_timeout_s={self.timeout_s:g} s"
        if node in self._heard:
            return f"node {node} is lost: nothing was heard of its launcher {silent}"
        return f"node {node}'s launcher did not come {silent}; is one started on every node?"

    # --- the exchange -------------------------------------------------------------------------

    def start(self, open_store: Callable[[], Any], where: str) -> None:
        self._thread = threading.Thread(target=self._exchange, args=(open_store, where), daemon=True)
        self._thread.start()

    def _exchange(self, open_store: Callable[[], Any], where: str) -> None:
        try:
            store, turn = open_store(), 0
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                self._broken = f"{where} is in use: set MASTER_PORT to another port, on every node"
                return
            self._broken = f"{where}, the address of node 0 (MASTER_ADDR), is not this machine's: {error}"
            return
        except RuntimeError as error:
            self._broken = f"no store at {where} (MASTER_ADDR, MASTER_PORT): {first_line(error)}"
            return
        try:
            while True:
                leaving, said, turn = self._left.is_set(), self._said, turn + 1
                store.set(f"node {self.rank}", json.dumps(said | {"turn": turn}))
                self._sent = said
                if leaving:
                    return
                for other in self.others:
                    self._listen(store, other)
                self._left.wait(SAY_EVERY_S)
        except RuntimeError:  # torch's for a connection that broke
            self._broken = f"the store at {where} is gone, and with it node 0's launcher"

    def _listen(self, store: Any, other: int) -> None:
        if not store.check([f"node {other}"]):
            return
        facts = json.loads(store.get(f"node {other}"))
        if facts["turn"] != self.facts(other).get("turn"):
            self._heard[other], self._heard_at[other] = facts, time.monotonic()

    def leave(self) -> None:
        """Once the others know all that this launcher has said. Node 0, whom they ask, is the last."""
        self.say(left=True)
        self.wait(lambda: not self._is_needed(), self.timeout_s)
        self._left.set()
        if self._sent is not None:  # else it may be waiting for node 0, deep in torch
            self._thread.join(self.timeout_s)

    def _is_needed(self) -> bool:
        if self.rank > 0:
            return 0 in self._heard and self._sent is not self._said and not self.loss(0)
        return any("left" not in self.facts(other) and not self.loss(other) for other in list(self._heard))


@contextmanager
def meet(config: RunConfig) -> Iterator[Nodes]:
    """Among the launchers of the run's nodes; they hear how this one ends."""
    rank = 0 if config.plan else own_rank(config.world.nodes, os.environ)
    if config.plan or config.world.nodes == 1:
        alone = Nodes()
        with alone.held:
            yield alone
        return
    nodes = _start(rank, config.world.nodes, config.world.node_timeout_s)
    try:
        with nodes.held:
            yield nodes
    except NodeFailed as error:  # the words of its origin
        nodes.say(failure=str(error))
        raise
    except KeyboardInterrupt:
        nodes.say(failure=f"node {nodes.rank} was interrupted")
        raise
    except BaseException as error:
        nodes.say(failure=f"node {nodes.rank}: {one_line(error)}")
        raise
    finally:
        nodes.leave()


def _start(rank: int, size: int, timeout_s: float) -> Nodes:
    master, port = os.environ["MASTER_ADDR"], _number(os.environ, "MASTER_PORT", PORT)
    try:
        address = own_address(master)
    except OSError as error:
        raise PlanError(f"MASTER_ADDR={master}: {error.strerror}") from error
    open_store = _store(rank, master, port, timeout_s)
    nodes = Nodes(rank, size, address, timeout_s)
    nodes.start(open_store, f"{master}:{port}")
    return nodes


def own_rank(nodes: int, environment: Mapping[str, str]) -> int:
    """This launcher's node, as torchrun says it. Raises PlanError where it says something else."""
    size = _number(environment, "WORLD_SIZE", 1)
    if nodes == 1:
        if size > 1:
            raise PlanError(
                f"WORLD_SIZE={size} in the environment: set world.nodes={size} for one run over all nodes; "
                "unset WORLD_SIZE for a run on this machine alone"
            )
        return 0
    needed = ("WORLD_SIZE", "RANK", "MASTER_ADDR")
    if missing := [name for name in needed if not environment.get(name)]:
        raise PlanError(
            f"world.nodes={nodes} wants a launcher on each node, with {', '.join(missing)} in its "
            "environment, as torchrun sets them: see docs/several-nodes.md"
        )
    if size != nodes:
        raise PlanError(f"world.nodes={nodes}, but WORLD_SIZE={size}: there is one launcher a node")
    rank = _number(environment, "RANK", 0)
    if not 0 <= rank < nodes:
        raise PlanError(f"RANK={rank} is none of the nodes 0 to {nodes - 1}")
    return rank


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environment.get(name) or default)
    except ValueError:
        raise PlanError(f"{name}={environment[name]} in the environment is no number") from None


def _store(rank: int, master: str, port: int, timeout_s: float) -> Callable[[], Any]:
    """What opens the store. torchrun may host one there itself; its restarts begin anew in it."""
    quiet, level = "TORCH_CPP_LOG_LEVEL", os.environ.get("TORCH_CPP_LOG_LEVEL")
    os.environ[quiet] = level or "FATAL"  # what breaks is said here, in one line
    import torch.distributed as dist

    from contracts.weights import connected_store, listening_store

    if level is None:
        del os.environ[quiet]
    hosted = rank > 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    make = connected_store if hosted else listening_store
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return lambda: dist.PrefixStore(f"launchers {attempt}", make(master, port, timeout_s))
