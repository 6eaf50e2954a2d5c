"""The NCCL group has deadlines of its own, and no watchdog. Without a GPU, torch's group is a stand-in."""

import os
import threading

import pytest
import torch
import torch.distributed as dist

from contracts import nccl
from contracts.nccl import BLOCKING_WAIT, NcclGroup
from tests.limits import HANG_S

ALWAYS_PASSES_S = 0.2  # for nobody ever connects or sends


class Work:
    """An operation of NCCL. As torch's, it implements no `is_success`, and its `wait` raises its error."""

    def __init__(self, completed: bool, success: bool):
        self.is_completed = lambda: completed
        self.success = success
        self.waited = False

    def wait(self):
        self.waited = True
        if not self.success:
            raise dist.DistBackendError("a peer is gone")


class StandIn:
    """As much of torch's ProcessGroupNCCL as is called, with what it found in the environment."""

    class Options: ...

    def __init__(self, *_):
        self.blocking_wait = os.environ.get(BLOCKING_WAIT)
        self.connected = threading.Event()
        self.aborted = threading.Event()
        self.work = Work(completed=True, success=True)
        self.when_asked = lambda: None
        self.may_end = threading.Event()
        self.may_end.set()

    def broadcast(self, tensors, options):
        self.when_asked()
        self.connected.wait()
        return self.work

    def abort(self):
        self.aborted.set()
        self.may_end.wait()


@pytest.fixture
def group(monkeypatch) -> NcclGroup:
    monkeypatch.setattr(dist, "ProcessGroupNCCL", StandIn, raising=False)
    monkeypatch.setattr(NcclGroup, "_on_callers_stream", lambda self, *a: lambda: self._group.broadcast(*a))
    return NcclGroup(dist.HashStore(), 0, 2, torch.device("cuda"))


def broadcast(group: NcclGroup, timeout_s: float) -> None:
    group.broadcast(torch.zeros(1), dist.BroadcastOptions(), timeout_s)


@pytest.mark.parametrize("before", [None, "0"])
def test_the_group_alone_is_made_without_a_watchdog(monkeypatch, request, before):
    monkeypatch.delenv(BLOCKING_WAIT, raising=False)
    if before:
        monkeypatch.setenv(BLOCKING_WAIT, before)
    assert request.getfixturevalue("group")._group.blocking_wait == "1"
    assert os.environ.get(BLOCKING_WAIT) == before


def test_connecting_ends_at_its_deadline_and_leaving_does_not_wait_for_it(group):
    with pytest.raises(RuntimeError, match="did not connect within 0.2 s"):
        broadcast(group, ALWAYS_PASSES_S)
    group.close()
    group._group.aborted.wait()


def test_leaving_ends_though_the_abort_does_not(group, monkeypatch):
    """NCCL's abort may wait for ranks of the same node, which do not leave."""
    monkeypatch.setattr(nccl, "LEAVING_S", ALWAYS_PASSES_S)
    group._group.connected.set()
    broadcast(group, HANG_S)
    group._group.may_end.clear()
    group._group.work = Work(completed=False, success=False)
    group._group.work.is_completed = lambda: bool(group.close())
    with pytest.raises(RuntimeError, match="aborted"):  # what waits is told at once
        broadcast(group, HANG_S)
    assert group._group.aborted.is_set()
    group._group.may_end.set()


@pytest.mark.parametrize(
    ("completed", "success", "says"),
    [(False, False, "no bucket within 0.2 s"), (True, False, "a peer is gone")],
)
def test_a_broadcast_that_hangs_or_fails_is_an_error(group, completed, success, says):
    group._group.connected.set()
    broadcast(group, HANG_S)
    assert group._group.work.waited  # until then torch holds the tensor
    group._group.work = Work(completed, success)
    with pytest.raises(RuntimeError, match=says):
        broadcast(group, ALWAYS_PASSES_S)


@pytest.mark.parametrize("connected", [False, True])
def test_a_broadcast_ends_when_another_thread_aborts_it(group, connected):
    if connected:
        group._group.connected.set()
        broadcast(group, HANG_S)
        group._group.work = Work(completed=False, success=False)
        group._group.work.is_completed = lambda: bool(group._aborted.set())
    else:
        group._group.when_asked = group._aborted.set
    with pytest.raises(RuntimeError, match="aborted"):
        broadcast(group, HANG_S)


def test_an_error_while_connecting_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        nccl._connect_within(HANG_S, lambda: 1 / 0, threading.Event())
