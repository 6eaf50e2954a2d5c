"""Members of a ring in threads of this process, over real gloo groups on the loopback interface."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist

from tests.limits import HANG_S

STORE = dist.HashStore()
NUMBERS = itertools.count()


def new_prefix() -> str:
    return f"group-{next(NUMBERS)}"


def gloo(
    prefix: str, rank: int, size: int, timeout_s: float = HANG_S, store: dist.Store = STORE
) -> dist.ProcessGroupGloo:
    """Returns one member's group, once all members have connected.

    Otherwise a member that ends early would break the connections of one that still connects.
    """
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=timeout_s)
    own = dist.PrefixStore(prefix, store)
    group = dist.ProcessGroupGloo(own, rank, size, options)
    if own.add("connected", 1) == size:
        own.set("all connected", "yes")
    own.wait(["all connected"], timedelta(seconds=HANG_S))
    return group


def in_threads(size: int, job: Callable[[int], object]) -> list:
    """Returns what `job(rank)` returns in a thread for each rank. Raises the first error."""
    with ThreadPoolExecutor(size) as threads:
        return [future.result(HANG_S) for future in [threads.submit(job, rank) for rank in range(size)]]


def over_gloo(size: int, job: Callable[[dist.ProcessGroupGloo, int], object]) -> list:
    """Returns what `job(group, rank)` returns for each member of a new group."""
    prefix = new_prefix()
    return in_threads(size, lambda rank: job(gloo(prefix, rank, size), rank))


class DyingGroup:
    """A gloo group whose member dies in the middle of an exchange: its sockets close."""

    def __init__(self, group, sends: int):
        self._group = group
        self._left = sends

    def recv(self, *arguments):
        return self._group.recv(*arguments)

    def send(self, *arguments):
        if self._left == 0:
            self._group = None
            raise ConnectionError("the member died")
        self._left -= 1
        return self._group.send(*arguments)
