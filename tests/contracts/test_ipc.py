"""A group whose rank 0 lends its buffers: content, one device, late and lost ranks, what is no handle."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from contracts import ipc
from contracts.weights import PeerLostError, RendezvousStore, WeightGroup
from tests.limits import HANG_S

ALWAYS_PASSES_S = 0.5  # for nobody ever copies


@contextmanager
def joining(
    ranks: int = 1,
) -> Iterator[tuple[RendezvousStore, Future[WeightGroup], list[Future[WeightGroup]]]]:
    """Yields the store, rank 0 and the other ranks, which join in threads."""
    store = RendezvousStore("127.0.0.1", 0, HANG_S)
    with ThreadPoolExecutor(1 + ranks) as threads:
        first = threads.submit(store.group, "weights", 1 + ranks, "ipc", HANG_S)
        at = ("127.0.0.1", store.port, "weights")
        others = [
            threads.submit(WeightGroup.join, *at, rank, 1 + ranks, "ipc", HANG_S)
            for rank in range(1, 1 + ranks)
        ]
        yield store, first, others
        for rank in (first, *others):
            if not rank.exception():
                rank.result().close()


def test_every_rank_has_each_buffer():
    buffers = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (7, 0, 5000, 12, 5000, 9000)]

    def receive(group: WeightGroup) -> list[torch.Tensor]:
        mine = [torch.zeros_like(buffer) for buffer in buffers]
        for buffer in mine:
            group.broadcast(buffer, HANG_S)
        return mine

    with joining(ranks=2) as (_, first, others), ThreadPoolExecutor(2) as threads:
        received = [threads.submit(receive, other.result()) for other in others]
        for buffer in buffers:
            first.result().broadcast(buffer, HANG_S)
        assert all(map(torch.equal, buffers * 2, [b for one in received for b in one.result()]))


def test_ranks_on_different_devices_do_not_join(monkeypatch):
    names = iter(["GPU 1", "GPU 2"])
    monkeypatch.setattr(ipc, "_name_of", lambda device: next(names))
    with joining() as (_, first, (other,)):
        for rank in (first, other):
            with pytest.raises(RuntimeError, match="one device: rank 0 is on GPU [12], another on GPU [12]"):
                rank.result()


def test_a_rank_that_copies_too_late_has_nothing(monkeypatch):
    """What it copied may be other bytes by then."""
    copying, given_up = threading.Event(), threading.Event()
    right = ipc._MemoryLender.copy

    def copy(self, lent, buffer):
        copying.set()
        assert given_up.wait(HANG_S)
        right(self, lent, buffer)

    monkeypatch.setattr(ipc._MemoryLender, "copy", copy)
    with joining() as (_, first, (other,)), ThreadPoolExecutor(1) as threads:
        received = threads.submit(other.result().broadcast, torch.zeros(3), HANG_S)
        with pytest.raises(PeerLostError, match="no copied/0/1 within") as lost:
            first.result().broadcast(torch.ones(3), ALWAYS_PASSES_S)
        assert lost.value.timed_out and copying.wait(HANG_S)
        given_up.set()
        first.result().close()
        with pytest.raises(PeerLostError, match="rank 0 has left|cannot be opened"):
            received.result()


def test_a_rank_that_waits_for_one_that_is_gone_is_told():
    with joining() as (store, first, (other,)), ThreadPoolExecutor(2) as threads:
        received = threads.submit(other.result().broadcast, torch.zeros(3), HANG_S)
        first.result().close()
        with pytest.raises(PeerLostError, match="rank 0 has left the group"):
            received.result()
    with joining() as (store, first, (other,)), ThreadPoolExecutor(1) as threads:
        sent = threads.submit(first.result().broadcast, torch.ones(3), HANG_S)
        other.result().close()
        with pytest.raises(PeerLostError, match="rank 1 did not copy: it has left"):
            sent.result()
    with joining() as (store, first, (other,)), ThreadPoolExecutor(1) as threads:
        other.result()
        sent = threads.submit(first.result().broadcast, torch.ones(3), HANG_S)
        store.abort()
        with pytest.raises(PeerLostError):
            sent.result()


@pytest.mark.parametrize(
    "wrong",
    [
        {"process": "../1", "serial": 1, "file": 0, "inode": 1, "bytes": 12},
        {"process": 2**22 + 1, "serial": 1, "file": 0, "inode": 1, "bytes": 12},
        {"process": 1, "serial": 1, "file": 0, "inode": 1, "bytes": 12},
        {"process": 0, "serial": 0, "file": True, "inode": 1, "bytes": 12},
        {"bytes": 12},
        {"bytes": 7},
    ],
)
def test_what_is_no_handle_of_this_buffer_is_refused(wrong, monkeypatch):
    monkeypatch.setattr(ipc._MemoryLender, "lend", lambda self, buffer: wrong)
    with joining() as (_, first, (other,)), ThreadPoolExecutor(2) as threads:
        received = threads.submit(other.result().broadcast, torch.zeros(3), HANG_S)
        sent = threads.submit(first.result().broadcast, torch.ones(3), HANG_S)
        for rank in (received, sent):  # rank 0 is told
            with pytest.raises(PeerLostError, match="no file of a process|be opened|bytes are lent"):
                rank.result()
