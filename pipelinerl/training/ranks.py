"""The trainer ranks' control group: rank 0 broadcasts, and the others wait for it together.

It is a gloo group of its own, in addition to the backend's, so that waiting for data never happens inside a
model's collective. With one rank nothing is sent.
"""

from datetime import timedelta

import torch
import torch.distributed as dist


class Ranks:
    def __init__(self, rank: int, size: int, timeout_s: float):
        """Must be called after `init_worker`, which makes the default process group."""
        self.rank = rank
        self.size = size
        alone = size == 1
        self._group = None if alone else dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def share(self, data: bytes | None) -> bytes:
        """Returns rank 0's bytes on every rank."""
        if self._group is None:
            return data
        size = torch.tensor([len(data) if self.rank == 0 else 0])
        dist.broadcast(size, src=0, group=self._group)
        if self.rank == 0:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        else:
            buffer = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(buffer, src=0, group=self._group)
        return data if self.rank == 0 else buffer.numpy().tobytes()

    def agree(self, yes: bool) -> bool:
        """Returns rank 0's decision on every rank."""
        return self.share(bytes([yes]))[0] == 1

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Elementwise sum over ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """Elementwise maximum over ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: torch.Tensor, operation: dist.ReduceOp) -> torch.Tensor:
        values = values.detach().cpu().clone()
        if self._group is not None:
            dist.all_reduce(values, operation, group=self._group)
        return values
