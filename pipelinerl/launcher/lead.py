"""What the launcher of node 0 does for the others: asks for their hosts, tells them the plan, and decides
when the run is over. With one node there is nobody to ask."""

import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pipelinerl.addresses import is_loopback
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.hosts import Host, host_of, hosts_elsewhere
from pipelinerl.launcher.nodes import Nodes
from pipelinerl.launcher.supervisor import JobFailedError, NodeState, is_over
from pipelinerl.streams.redis_connection import without_secrets

ECHO_S = 5.0  # longest wait for the words of a node whose end has ended a job here


class Plan(NamedTuple):
    """All that the launchers of other nodes plan the jobs from, beside the configuration."""

    run_dir: str
    model: str
    token: str
    redis_url: str | None
    hosts: list[Host]
    mark: str  # a file of run_dir, which they must see


def gather_hosts(config: RunConfig, nodes: Nodes) -> list[Host]:
    """By node."""
    if config.plan and config.world.nodes > 1:
        return hosts_elsewhere(config)
    nodes.say(config=as_json(config), host=host_of(config, 0, nodes.address, nodes.held))
    hosts = [Host(*nodes.hear(node, "host")) for node in nodes.all]
    addresses = {host.address for host in hosts}
    if any(map(is_loopback, addresses)) and not all(map(is_loopback, addresses)):
        raise PlanError(
            f"the nodes' addresses are {', '.join(sorted(addresses))}: MASTER_ADDR must be, on node 0 too, "
            "an address by which all reach it"
        )
    return hosts


def as_json(config: RunConfig) -> dict:
    """As it may be said aloud."""
    composed = json.loads(config.model_dump_json(by_alias=True))
    if url := composed["streams"].get("url"):
        composed["streams"]["url"] = without_secrets(url)
    return composed


def wait_until_ready(nodes: Nodes, run_dir: Path, **plan: object) -> None:
    """Until every other node has checked what it will run, and that it sees the same run directory."""
    if not nodes.others:
        return
    mark = run_dir / f".mark-{secrets.token_hex(8)}"
    mark.touch()
    try:
        nodes.say(plan=Plan(run_dir=str(run_dir), mark=str(mark), **plan)._asdict())
        for node in nodes.others:
            nodes.hear(node, "ready")
    finally:
        mark.unlink()


class Verdict:
    """Whether the run is over, from the state of every node; asked by the supervisor."""

    def __init__(self, nodes: Nodes, show_servers: Callable[[int], None]):
        self._nodes, self._show = nodes, show_servers
        self._lost: set[int] = set()

    def __call__(self, own: NodeState) -> bool:
        if own.failure and self._nodes.others:  # maybe of a job that lost its peer: who ended first says so
            self._nodes.wait(lambda: any(map(self._nodes.failure, self._nodes.others)), ECHO_S)
        states = [own, *map(self._state, self._nodes.others)]
        self._show(sum(state.servers for state in states))
        return is_over(states)

    def _state(self, node: int) -> NodeState:
        if failure := self._nodes.failure(node):
            raise JobFailedError(failure)
        state = NodeState(**self._nodes.facts(node)["state"])
        loss = self._nodes.loss(node)
        if not loss:
            return state
        if state.working or state.reference:
            raise JobFailedError(loss)
        if node not in self._lost:  # a run goes on without a server
            self._lost.add(node)
            print(f"launch.py: {loss}", file=sys.stderr)
        return NodeState(last_log_line=loss)


def end_others(nodes: Nodes, stop_timeout_s: float) -> None:
    """Returns when no job of the run is left on any node, or one cannot be ended."""
    nodes.say(over=True)
    within_s = 2 * stop_timeout_s + nodes.timeout_s  # workers, then servers
    for node in nodes.others:
        nodes.wait(lambda node=node: "ended" in nodes.facts(node) or nodes.trouble(node), within_s)
