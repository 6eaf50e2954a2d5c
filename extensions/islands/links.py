"""Connects the same rank of several islands by a gloo group that binds to one address of this machine."""

from datetime import timedelta

import torch
import torch.distributed as dist

from contracts.support.messages import first_line
from contracts.weights import connected_store
from extensions.islands.ring import Group, Work


class FailedGroup:
    """The result of a failed rendezvous. Every `send` and `recv` raises ConnectionError."""

    def __init__(self, why: str):
        self._why = why

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work:
        raise ConnectionError(self._why)

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work:
        raise ConnectionError(self._why)


def connected_group(
    address: str, store: str, name: str, rank_and_size: tuple[int, int], timeout_s: float
) -> Group:
    """Forms a group. Returns a FailedGroup if that fails.

    address: address of this machine to bind to. store: HOST:PORT of a rendezvous store. name: must be unique
        in the store. timeout_s: timeout of the rendezvous and of connecting.
    """
    try:
        host, port = store.rsplit(":", 1)
        rendezvous = connected_store(host.strip("[]"), int(port), timeout_s)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupGloo(dist.PrefixStore(name, rendezvous), *rank_and_size, options)
    except (RuntimeError, OSError, ValueError, TypeError) as error:  # torch raises TypeError for a bad port
        return FailedGroup(f"no links to the other islands: {first_line(error)}")
