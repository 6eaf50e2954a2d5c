"""The arguments of vLLM's weight transfer calls, and the buffer of an incoming update, for `transport`."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue

import torch
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo

AHEAD = 2  # buckets that may be queued while one is copied


@dataclass
class GroupAddress(WeightTransferInitInfo):
    """The address of the weight group. `rank_offset`: this server's first rank in it."""

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
    """The tied weights of an update."""

    tied: dict[str, str]  # tied name -> name under which the weight is sent


@dataclass
class Transfer:
    """One incoming update: a thread puts buckets, and the worker takes them."""

    total_bytes: int
    buffers_all: bool  # True if buckets are applied only after all have arrived
    received_bytes: int = 0
    seconds: float = 0.0
    not_finite: str | None = None  # message about a weight that is not finite
    error: str | None = None
    dropped: bool = False

    def __post_init__(self) -> None:
        self.buckets: Queue = Queue(0 if self.buffers_all else AHEAD)

    def put(self, bucket: dict[str, torch.Tensor]) -> None:
        """Waits until the queue has space for the bucket, or the transfer is dropped."""
        while not self.dropped:
            with suppress(Full):
                self.buckets.put(bucket, timeout=0.1)
                return

    def drop(self) -> None:
        self.dropped = True
        self.buckets = Queue()

    def take(self) -> dict[str, torch.Tensor]:
        """Waits for the next bucket and returns it. Returns an empty dict if the transfer has failed."""
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
    """Yields the bucket's weights, under their own and their tied names.

    vLLM may keep a repacked copy of a tied head, which is updated only under its own name.
    """
    for name, tensor in bucket.items():
        yield name, tensor
        for copy, sent in tied.items():
            if sent == name:
                yield copy, tensor
