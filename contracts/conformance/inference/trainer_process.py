"""Ranks of the weight group in separate processes, so that they can be killed and stalled.

A process joins and broadcasts on command and reports each completed command. Checks send the HTTP requests.
"""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from contracts.conformance.processes import fork_server
from contracts.weights import RendezvousStore, WeightGroup


class GroupProcess:
    """A process with one rank. `close` kills it."""

    def __init__(self, target: Callable[..., None], *args: object):
        context = fork_server()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, message: object) -> None:
        """Sends the process its next command."""
        self._pipe.send(message)

    def receive(self, timeout_s: float) -> object:
        """Waits for the next message. Raises TimeoutError, or EOFError if the process has ended."""
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"the kit's own process said nothing for {timeout_s:g} s")
        return self._pipe.recv()

    def terminate(self, how: str) -> None:
        """Kills or stops the process. how: `killed`, or `stalled`, which leaves its sockets open."""
        assert self._process.pid is not None  # the process has been started
        os.kill(self._process.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)

    def close(self) -> None:
        """Kills the process and waits until it has ended."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


@dataclass(frozen=True)
class GroupSpec:
    """The arguments with which every member joins the group."""

    name: str
    address: str
    world_size: int
    backend: str
    timeout_s: float


def trainer(pipe: Connection, address: str, timeout_s: float) -> None:
    """Runs rank 0: sends its port, receives a `GroupSpec`, joins, and broadcasts the buckets it receives.

    Sends a message after each command. Returns after a failed broadcast, as it ends a trainer's group.
    """
    torch.set_num_threads(1)
    store = RendezvousStore(address, 0, timeout_s)
    pipe.send(store.port)
    spec: GroupSpec = pipe.recv()
    group = store.group(spec.name, spec.world_size, spec.backend, spec.timeout_s)
    pipe.send("joined")
    while True:
        raws: Sequence[bytes] = pipe.recv()
        try:
            for raw in raws:
                group.broadcast(torch.frombuffer(bytearray(raw), dtype=torch.uint8), spec.timeout_s)
        except RuntimeError as error:
            pipe.send(str(error))
            return
        pipe.send("sent")


def receiver(pipe: Connection, spec: GroupSpec, port: int, rank: int) -> None:
    """Runs another member: joins, receives the sizes of buckets and then the buckets, and waits forever.

    Sends a message when it is ready, has joined, and has received them.
    """
    torch.set_num_threads(1)
    pipe.send("ready")
    group = WeightGroup.join(
        spec.address, port, spec.name, rank, spec.world_size, spec.backend, spec.timeout_s
    )
    pipe.send("joined")
    for size in pipe.recv():
        group.broadcast(torch.empty(size, dtype=torch.uint8), spec.timeout_s)
    pipe.send("received")
    pipe.recv()
