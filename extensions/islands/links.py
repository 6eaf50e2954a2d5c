"""Forms gloo groups of the same rank of several islands, bound to one address of this machine."""

from datetime import timedelta

import torch
import torch.distributed as dist

from contracts.support.messages import first_line
from contracts.weights import connected_store
from extensions.islands.ring import Group, Work


class FailedGroup:
    """A group that could not be formed, in which every exchange fails."""

    def __init__(self, why: str):
        self._why = why

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work:
        raise ConnectionError(self._why)

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work:
        raise ConnectionError(self._why)


def linked(address: str, store: str, name: str, place: tuple[int, int], timeout_s: float) -> Group:
    """Returns a group under a name that is new in the store, or a FailedGroup.

    address: address of this machine that the group binds to.
    store: `host:port` of a rendezvous store.
    place: this island's rank, and the number of islands.
    timeout_s: longest time for the rendezvous and for connections.
    """
    try:
        host, port = store.rsplit(":", 1)
        rendezvous = connected_store(host.strip("[]"), int(port), timeout_s)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupGloo(dist.PrefixStore(name, rendezvous), *place, options)
    except (RuntimeError, OSError, ValueError, TypeError) as error:  # torch raises TypeError for a port
        return FailedGroup(f"no links to the other islands: {first_line(error)}")
