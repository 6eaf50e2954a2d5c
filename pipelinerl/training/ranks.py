"""The trainer ranks' control group: rank 0 decides and distributes data, and the other ranks wait for it.

It is a separate gloo group, in addition to the backend's, so that waiting for data never happens inside a
model's collective. With one rank, nothing is sent.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from contracts.records import Record, decode, encode
from pipelinerl.training.meanwhile import meanwhile

STILL_WAITING = -1  # message that rank 0 is alive, but has no number yet
SIGNS_PER_TIMEOUT = 4  # number of such messages within a timeout
LENGTH_BYTES = 8  # bytes of the length before each record, because all are padded to the longest


class Ranks:
    def __init__(
        self,
        rank: int,
        size: int,
        timeout_s: float,
        heartbeat_timeout_s: float = math.inf,
        beat: Callable[[], object] = lambda: None,
    ):
        """Must be called after `init_worker`, which creates the default process group.

        timeout_s: longest time without a message of a rank. Rank 0 may wait for data for longer.
        beat: called while the rank waits, at least `SIGNS_PER_TIMEOUT` times in `heartbeat_timeout_s`.
        """
        self._beat = beat
        self.rank = rank
        self.size = size
        self._sign_s = min(timeout_s, heartbeat_timeout_s) / SIGNS_PER_TIMEOUT
        alone = size == 1
        self._group = None if alone else dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def scatter(self, make: Callable[[], Sequence[Record]]) -> Record:
        """Returns the rank's record. make: called only on rank 0; returns a record for each rank."""
        if self._group is None:
            return make()[0]
        if self.rank > 0:
            buffer = torch.empty(self._received_number(), dtype=torch.uint8)
            dist.scatter(buffer, src=0, group=self._group)
            return _record_in(buffer)
        with self._signs_of_life():
            own, *others = make()
            parts = [encode(record) for record in others]
        length = LENGTH_BYTES + max(len(part) for part in parts)
        self._send_number(length)
        dist.scatter(
            torch.empty(length, dtype=torch.uint8),
            [torch.zeros(length, dtype=torch.uint8), *(_buffer_of(part, length) for part in parts)],
            group=self._group,
        )
        return own

    def agree(self, decide: Callable[[], bool]) -> bool:
        """Returns rank 0's decision on every rank."""
        if self._group is None:
            return decide()
        if self.rank > 0:
            return self._received_number() == 1
        with self._signs_of_life():
            decision = decide()
        self._send_number(int(decision))
        return decision

    def on_rank_0(self, target: object | None) -> "OnRank0":
        """Returns a proxy of an object that exists only on rank 0."""
        return OnRank0(self, target)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return self._reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        return self._reduce(values, dist.ReduceOp.MAX)

    def _received_number(self) -> int:
        number = torch.tensor([STILL_WAITING])
        try:
            while int(number) == STILL_WAITING:
                self._beat()
                dist.broadcast(number, src=0, group=self._group)
        except RuntimeError as error:
            raise RuntimeError(f"trainer rank 0 is gone or silent, its log says why: {error}") from error
        return int(number)

    def _signs_of_life(self) -> contextlib.AbstractContextManager[None]:
        """Sends STILL_WAITING to the other ranks at intervals while the block runs."""

        def send() -> None:
            # If another rank has ended, the broadcast after the block raises the same error.
            with contextlib.suppress(RuntimeError):
                self._send_number(STILL_WAITING)

        return meanwhile(self._sign_s, send, "signs of life")

    def _send_number(self, number: int) -> None:
        dist.broadcast(torch.tensor([number]), src=0, group=self._group)

    def _reduce(self, values: torch.Tensor, operation: dist.ReduceOp) -> torch.Tensor:
        values = values.detach().cpu().clone()
        if self._group is not None:
            dist.all_reduce(values, operation, group=self._group)
        return values


class OnRank0:
    """A proxy of an object on rank 0. All ranks must make the same calls in the same order.

    A call returns rank 0's result on every rank, as a bool.
    """

    def __init__(self, ranks: Ranks, target: object | None):
        self._ranks = ranks
        self._target = target

    def __getattr__(self, name: str) -> Callable[..., bool]:
        def call(*arguments: object) -> bool:
            return self._ranks.agree(lambda: bool(getattr(self._target, name)(*arguments)))

        return call


def _buffer_of(data: bytes, length: int) -> torch.Tensor:
    """Returns the data, preceded by its length, as a tensor padded to `length` bytes."""
    buffer = bytearray(length)
    buffer[:LENGTH_BYTES] = len(data).to_bytes(LENGTH_BYTES)
    buffer[LENGTH_BYTES : LENGTH_BYTES + len(data)] = data
    return torch.frombuffer(buffer, dtype=torch.uint8)


def _record_in(buffer: torch.Tensor) -> Record:
    data = memoryview(buffer.numpy())
    length = int.from_bytes(data[:LENGTH_BYTES])
    return decode(data[LENGTH_BYTES : LENGTH_BYTES + length])
