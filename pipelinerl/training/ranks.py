"""The trainer ranks' control group: rank 0 broadcasts, and the others wait for it together.

It is a gloo group of its own, in addition to the backend's, so that waiting for data never happens inside a
model's collective. With one rank nothing is sent.
"""

import contextlib
import math
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from pipelinerl.training.meanwhile import meanwhile

STILL_WAITING = -1  # sent in the place of a size: rank 0 is alive, and has no data yet
SIGNS_PER_TIMEOUT = 4  # how often it says so


class Ranks:
    def __init__(
        self,
        rank: int,
        size: int,
        timeout_s: float,
        heartbeat_timeout_s: float = math.inf,
        beat: Callable[[], object] = lambda: None,
    ):
        """Must be called after `init_worker`, which makes the default process group.

        timeout_s: how long no rank may be silent. Rank 0 may wait for data for longer.
        beat: is called while the rank waits, at least `SIGNS_PER_TIMEOUT` times in `heartbeat_timeout_s`.
        """
        self._beat = beat
        self.rank = rank
        self.size = size
        self._sign_s = min(timeout_s, heartbeat_timeout_s) / SIGNS_PER_TIMEOUT
        alone = size == 1
        self._group = None if alone else dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def share(self, make: Callable[[], bytes]) -> bytes:
        """Returns on every rank what `make` returns on rank 0, where alone it is called."""
        if self._group is None:
            return make()
        if self.rank > 0:
            return self._received()
        with self._signs_of_life():
            data = make()
        self._send_number(len(data))
        dist.broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8), src=0, group=self._group)
        return data

    def agree(self, decide: Callable[[], bool]) -> bool:
        """Returns rank 0's decision on every rank."""
        return self.share(lambda: bytes([decide()]))[0] == 1

    def wait_for_rank_0(self, work: Callable[[], None]) -> None:
        """Does `work` on rank 0, while the others wait for its end."""
        self.agree(lambda: work() is None)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Elementwise sum over ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """Elementwise maximum over ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _received(self) -> bytes:
        size = torch.tensor([STILL_WAITING])
        try:
            while int(size) == STILL_WAITING:
                self._beat()
                dist.broadcast(size, src=0, group=self._group)
        except RuntimeError as error:
            raise RuntimeError(f"trainer rank 0 is gone or silent, its log says why: {error}") from error
        buffer = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(buffer, src=0, group=self._group)
        return buffer.numpy().tobytes()

    def _signs_of_life(self) -> contextlib.AbstractContextManager[None]:
        """Tells the other ranks every now and then that rank 0 waits, for as long as the block runs."""

        def tell() -> None:
            # Where another rank is gone, the broadcast that follows the block raises it too.
            with contextlib.suppress(RuntimeError):
                self._send_number(STILL_WAITING)

        return meanwhile(self._sign_s, tell, "signs of life")

    def _send_number(self, number: int) -> None:
        dist.broadcast(torch.tensor([number]), src=0, group=self._group)

    def _reduce(self, values: torch.Tensor, operation: dist.ReduceOp) -> torch.Tensor:
        values = values.detach().cpu().clone()
        if self._group is not None:
            dist.all_reduce(values, operation, group=self._group)
        return values
