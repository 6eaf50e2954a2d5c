"""Collectives over the ranks of one island, in a separate gloo group."""

from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from contracts.trainer import WorkerSpec

Value = TypeVar("Value")


class IslandRanks:
    """One rank of an island. All methods are collectives over the island's ranks."""

    def __init__(self, spec: WorkerSpec):
        """Must be called on every rank, after the inner trainer has created the default process group."""
        self.rank = spec.rank
        self.size = spec.world_size
        self._group = None if spec.world_size == 1 else new_group(spec)

    def total(self, values: list[float]) -> list[float]:
        """Returns the sums over the ranks."""
        sums = torch.tensor(values, dtype=torch.float64)
        if self._group:
            dist.all_reduce(sums, group=self._group)
        return sums.tolist()

    def all(self, said: bool) -> bool:
        """Returns True if the value is True on every rank."""
        return self.total([float(said)])[0] == self.size

    def of_rank_0(self, value: Value | None) -> Value:
        """Returns rank 0's value, which must be picklable, on every rank."""
        values = [value]
        if self._group:
            dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def each(self, value: Value) -> list[Value]:
        """Returns the values of all ranks, in their order."""
        values = [value]
        if self._group:
            values *= self.size
            dist.all_gather_object(values, value, group=self._group)
        return values


def new_group(spec: WorkerSpec) -> dist.ProcessGroup:
    """Returns a group of the island's ranks for CPU tensors. Must be called on every rank."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=spec.timeout_s))
