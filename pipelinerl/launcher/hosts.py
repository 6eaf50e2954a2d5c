"""The nodes of a run as the others reach them: addresses, and the ports of what is placed on each."""

import errno
import os
from contextlib import ExitStack
from typing import NamedTuple

from contracts.support.ports import ReservedPort
from pipelinerl.addresses import in_url, interface_of, is_loopback
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.placement import Place

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"  # torch's
RANK_0 = "trainer-0"  # hosts the ranks' rendezvous
REFERENCE = "reference"
LAST_PORT = 65535


class Host(NamedTuple):
    address: str
    ports: dict[str, int]  # by job, of those that listen
    interface: str | None = None  # for gloo, which else takes the one that the host's name stands for


def host_of(config: RunConfig, node: int, address: str, held: ExitStack) -> Host:
    """The node that this machine is. Its ports are kept for its jobs as long as `held` is open. Raises
    PlanError where one is in use."""
    ports = {}
    for name, port in _ports(config, node).items():
        there = address if name == RANK_0 else server_address(config, address)
        try:
            ports[name] = held.enter_context(ReservedPort(there, port)).number
        except OSError as error:
            setting = "base_port" if error.errno == errno.EADDRINUSE else "host"
            raise PlanError(
                f"{name} cannot listen at {in_url(there)}:{port}: {error.strerror}; set inference.{setting} "
                "to another, or to null"
            ) from error
    return Host(address, ports, _interface(address))


def _interface(address: str) -> str | None:
    return None if is_loopback(address) else os.environ.get(INTERFACE_VARIABLE) or interface_of(address)


def hosts_elsewhere(config: RunConfig) -> list[Host]:
    """To show a plan by, while no node is known."""
    return [Host(f"node-{node}", _ports(config, node)) for node in range(config.world.nodes)]


def server_address(config: RunConfig, address: str) -> str:
    """Where a server binds to, on a node of that address."""
    return config.inference.host or address


def server_urls(config: RunConfig, hosts: list[Host]) -> dict[str, str]:
    """By job: of the servers in their order, and of the reference."""
    urls = {}
    for name, place in _listening(config).items():
        host = hosts[place.node]
        urls[name] = f"http://{in_url(server_address(config, host.address))}:{host.ports[name]}"
    return urls


def _listening(config: RunConfig) -> dict[str, Place]:
    servers, _, reference = config.placement
    places = {f"server-{i}": place for i, place in enumerate(servers)}
    return places | ({REFERENCE: reference} if reference else {})


def _ports(config: RunConfig, node: int) -> dict[str, int]:
    """By job, 0 for any. No two servers of a run have the same, so that several nodes may be one machine."""
    base, listening, ports = config.inference.base_port, _listening(config), {}
    if base is not None and base + len(listening) - 1 > LAST_PORT:
        raise PlanError(
            f"inference.base_port={base} leaves no ports for {len(listening)} servers; set a lower"
        )
    for index, (name, place) in enumerate(listening.items()):
        if place.node == node:
            ports[name] = 0 if base is None else base + index
    if config.placement.trainers[0].node == node:
        ports[RANK_0] = 0
    return ports
