"""A bare gloo broadcast to another process, to compare weight updates with."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import torch

from contracts.weights import RendezvousStore, WeightGroup

PATIENCE_S = 60


@contextlib.contextmanager
def raw_broadcast(size: int, bucket_bytes: int, fresh: bool) -> Iterator[Callable[[], float]]:
    """Yields a function that broadcasts `size` bytes and returns the seconds until the other end has them.

    fresh: whether each bucket is received into new memory, as by a server that keeps them all.
    """
    store = RendezvousStore("127.0.0.1", 0, PATIENCE_S)
    spawn = multiprocessing.get_context("spawn")
    received, theirs = spawn.Pipe(duplex=False)
    arguments = (store.port, size, bucket_bytes, fresh, theirs)
    other = spawn.Process(target=_receive, args=arguments, daemon=True)
    other.start()
    group = store.group("raw", 2, "gloo", PATIENCE_S)
    buckets = [torch.zeros(length, dtype=torch.uint8) for length in _lengths(size, bucket_bytes)]

    def broadcast() -> float:
        began = time.perf_counter()
        for bucket in buckets:
            group.broadcast(bucket, PATIENCE_S)
        received.recv()
        return time.perf_counter() - began

    try:
        yield broadcast
    finally:
        other.kill()
        other.join()


def _receive(port: int, size: int, bucket_bytes: int, fresh: bool, received: Connection) -> None:
    group = WeightGroup.join("127.0.0.1", port, "raw", 1, 2, "gloo", PATIENCE_S)
    kept = torch.zeros(min(size, bucket_bytes), dtype=torch.uint8)
    while True:
        for length in _lengths(size, bucket_bytes):
            bucket = torch.empty(length, dtype=torch.uint8) if fresh else kept[:length]
            group.broadcast(bucket, 10 * PATIENCE_S)
        received.send(True)


def _lengths(size: int, bucket_bytes: int) -> list[int]:
    return [min(bucket_bytes, size - start) for start in range(0, size, bucket_bytes)]
