"""The weight group over NCCL: its deadlines, its end when a peer is killed or stopped in mid-broadcast, and
the time in which its ranks leave it, in both orders.

NCCL does not form a group of two ranks on one GPU. There it is tried that it says so in time, and what needs
two ranks is left out by name. Dry, the group is one of gloo.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from benchmarks.gpu_check.outcomes import FailedError
from contracts.conformance.inference.trainer_process import GroupProcess, GroupSpec, receiver
from contracts.nccl import ABORTING
from contracts.support.addresses import LOOPBACK
from contracts.weights import RendezvousStore, WeightGroup

START_S = 60.0  # for a process to start, and for a group that does form
SLACK_S = 5.0  # beyond a deadline
CLOSE_S = 5.0 + SLACK_S  # for a rank to leave
NOT_LEFT = f"{{}} has not left its group after {CLOSE_S:g} s"
BUCKET = 64 << 20  # bytes, more than sockets hold
LONGEST_ERROR = 120  # characters


def check(dry: bool) -> list[str]:
    """Returns a line for each case that was tried or could not be."""
    trial = Trial("gloo", 1.0) if dry else Trial("nccl", 10.0)
    lines = [trial.alone()]
    gpu = 0 if dry else min(1, torch.cuda.device_count() - 1)
    if not dry and gpu == 0 and (refusal := trial.refusal()):
        missing = "not tried, because two NCCL ranks need two GPUs: a peer killed or stopped in mid-broadcast"
        lines += [refusal, f"{missing} (publication-gloo has both), and leaving in both orders"]
    else:
        lines += [trial.left([0, 1], gpu), trial.left([1, 0], gpu)]
        lines += [trial.ended("killed", gpu), trial.ended("stalled", gpu)]
    return [*lines, trial.absent()]  # last, because a thread of NCCL may never return from it


@dataclass(frozen=True)
class Trial:
    """The cases, over one backend. Each returns what was seen, or raises FailedError."""

    backend: str
    timeout_s: float  # of what must fail

    def alone(self) -> str:
        group = self._group(1, START_S)
        group.broadcast(torch.ones(BUCKET, dtype=torch.uint8), START_S)
        group.close()
        return f"a {self.backend} group of one rank broadcasts"

    def absent(self) -> str:
        return f"a peer that never comes: {self._failure(lambda: self._group(2, self.timeout_s))}"

    def refusal(self) -> str | None:
        """Returns how two ranks on the first GPU were refused, or None where they form a group."""
        store = RendezvousStore(LOOPBACK, 0, START_S)
        spec = self._spec(self.timeout_s)
        with closing(GroupProcess(receive_on, spec, store.port, 0)) as peer:
            group = self._joined(store, spec, peer)
            peer.send([1])
            seen = self._error(lambda: group.broadcast(torch.ones(1, dtype=torch.uint8), self.timeout_s))
            group.close()
        return seen and f"two ranks on one GPU: {seen}"

    def ended(self, how: str, gpu: int) -> str:
        """Broadcasts one bucket to a peer on that GPU, ends it, and broadcasts the next."""
        store = RendezvousStore(LOOPBACK, 0, START_S)
        spec = self._spec(START_S)
        bucket = torch.ones(BUCKET, dtype=torch.uint8)
        with closing(GroupProcess(receive_on, spec, store.port, gpu)) as peer:
            group = self._joined(store, spec, peer)
            peer.send([BUCKET, BUCKET])
            group.broadcast(bucket, START_S)
            peer.terminate(how)
            seen = self._failure(lambda: group.broadcast(bucket, self.timeout_s))
            group.close()
        return f"a peer {how} in mid-broadcast: {seen}"

    def left(self, order: Sequence[int], gpu: int) -> str:
        """Broadcasts one bucket to a peer on that GPU. Then the ranks leave in this order, the next when the
        one before has left.
        """
        store = RendezvousStore(LOOPBACK, 0, START_S)
        spec = self._spec(START_S)
        with closing(GroupProcess(leave_on, spec, store.port, gpu)) as peer:
            group = self._joined(store, spec, peer)
            peer.send(BUCKET)
            group.broadcast(torch.ones(BUCKET, dtype=torch.uint8), START_S)
            peer.receive(START_S)
            took = [_closed(group) if rank == 0 else _peer_closed(peer) for rank in order]
        each = ", ".join(f"rank {rank} in {how_long}" for rank, how_long in zip(order, took, strict=True))
        return f"left in the order {order[0]}, {order[1]}: {each}"

    def _spec(self, timeout_s: float) -> GroupSpec:
        return GroupSpec(_name(), LOOPBACK, 2, self.backend, timeout_s)

    def _group(self, world_size: int, timeout_s: float) -> WeightGroup:
        store = RendezvousStore(LOOPBACK, 0, timeout_s)
        return store.group(_name(), world_size, self.backend, timeout_s, probe=True)

    def _joined(self, store: RendezvousStore, spec: GroupSpec, peer: GroupProcess) -> WeightGroup:
        peer.receive(START_S)
        group = store.group(spec.name, spec.world_size, spec.backend, spec.timeout_s)
        peer.receive(START_S)
        return group

    def _failure(self, work: Callable[[], object]) -> str:
        if seen := self._error(work):
            return seen
        raise FailedError("a broadcast without its peer raised no error")

    def _error(self, work: Callable[[], object]) -> str | None:
        """Returns after how long `work` raised and what, or None. It must not take longer than its limit."""
        began = time.monotonic()
        try:
            work()
            return None
        except RuntimeError as error:
            seconds = time.monotonic() - began
            seen = f"an error after {seconds:.1f} s, {' '.join(str(error).split())[:LONGEST_ERROR]}"
        if seconds > self.timeout_s + SLACK_S:
            raise FailedError(seen, f"expected: within {self.timeout_s:g} s")
        return seen


def receive_on(pipe: Connection, spec: GroupSpec, port: int, gpu: int) -> None:
    """Runs rank 1 in its own process, over NCCL on that GPU."""
    if spec.backend == "nccl":
        torch.cuda.set_device(gpu)
    receiver(pipe, spec, port, 1)


def leave_on(pipe: Connection, spec: GroupSpec, port: int, gpu: int) -> None:
    """Runs rank 1 in its own process: receives a bucket, leaves when told, and sends how long it took."""
    if spec.backend == "nccl":
        torch.cuda.set_device(gpu)
    pipe.send("ready")
    group = WeightGroup.join(spec.address, port, spec.name, 1, spec.world_size, spec.backend, spec.timeout_s)
    pipe.send("joined")
    group.broadcast(torch.empty(pipe.recv(), dtype=torch.uint8), spec.timeout_s)
    pipe.send("received")
    pipe.recv()
    began = time.monotonic()
    group.close()
    pipe.send(_since(began))


def _since(began: float) -> str:
    """Returns the seconds since then, and whether NCCL's abort goes on in a thread that was abandoned."""
    goes_on = any(thread.name == ABORTING for thread in threading.enumerate())
    return f"{time.monotonic() - began:.1f} s{', and NCCL still aborts' * goes_on}"


def _peer_closed(peer: GroupProcess) -> object:
    """Tells the peer to leave. Returns how long it took. Raises FailedError at the deadline."""
    peer.send("leave")
    try:
        return peer.receive(CLOSE_S)
    except TimeoutError as error:
        raise FailedError(NOT_LEFT.format("rank 1")) from error


def _closed(group: WeightGroup) -> str:
    """Leaves the group in a thread. Returns how long it took. Raises FailedError at the deadline."""
    began = time.monotonic()
    closing_thread = threading.Thread(target=group.close, daemon=True)
    closing_thread.start()
    closing_thread.join(CLOSE_S)
    if closing_thread.is_alive():
        raise FailedError(NOT_LEFT.format("rank 0"))
    return _since(began)


def _name() -> str:
    return f"check-{secrets.token_hex(8)}"
