"""The arguments by which vLLM's workers join the weight group and receive an update, and an arriving update.

`transport` uses it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue

import torch
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo

AHEAD = 2  # buckets that may wait while one is copied


@dataclass
class GroupAddress(WeightTransferInitInfo):
    """The address of the weight group, and this server's first rank in it."""

    master_address: str
    master_port: int
    group_name: str
    rank_offset: int
    world_size: int
    backend: str
    timeout_s: float
    probe: bool


@dataclass
class TiedWeights(WeightTransferUpdateInfo):
    """The tied names of an update, each with the name under which its weight is sent."""

    tied: dict[str, str]


@dataclass
class Transfer:
    """One incoming update: a thread puts buckets, and the worker takes them."""

    total_bytes: int
    held: bool  # whether no bucket is applied before all have arrived
    received_bytes: int = 0
    seconds: float = 0.0
    spoilt: str | None = None  # why its weights cannot be used
    error: str | None = None
    dropped: bool = False

    def __post_init__(self) -> None:
        self.buckets: Queue = Queue(0 if self.held else AHEAD)

    def put(self, bucket: dict[str, torch.Tensor]) -> None:
        """Waits until the queue can hold the bucket, or the transfer is dropped."""
        while not self.dropped:
            with suppress(Full):
                self.buckets.put(bucket, timeout=0.1)
                return

    def drop(self) -> None:
        self.dropped = True
        self.buckets = Queue()

    def take(self) -> dict[str, torch.Tensor]:
        """Returns the next bucket; an empty dict once the transfer has failed."""
        while not self.error:
            with suppress(Empty):
                return self.buckets.get(timeout=0.05)
        return {}

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.error = self.error or repr(error)


def with_copies(bucket: dict[str, torch.Tensor], tied: dict[str, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the bucket's weights, also under their tied names.

    Engines keep a repacked copy of a tied head, which is updated only under its own name.
    """
    for name, tensor in bucket.items():
        yield name, tensor
        for copy, sent in tied.items():
            if sent == name:
                yield copy, tensor
