"""An NCCL process group that waits for nothing without an end, and that torch's watchdog leaves alone.

What torch's source says of a ProcessGroupNCCL, read and not tried, since two GPUs are needed:

* Its watchdog ends the whole process when an operation fails, or takes longer than the group's own timeout,
  whatever timeout the operation was given. Its heartbeat monitor does so for a failure at another rank, too.
* A group that is made with TORCH_NCCL_BLOCKING_WAIT has neither: who waits for a work judges it.
* A work's `wait` orders streams, or in that mode ends at the group's timeout. So the work is polled instead.
* The ranks connect at the first operation, inside a call that has no deadline and cannot be aborted. So it
  runs in a thread that is abandoned at the deadline. NCCL's non-blocking mode is no help. There torch waits,
  for 30 minutes, under the lock that `abort` needs; and it turned the mode off, since NCCL 2.26 hung in it.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import torch
import torch.distributed as dist

BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
POLL_S = 0.0005
CONNECTING_POLL_S = 0.05
ABORTED = "the group was aborted"


class NcclGroup:
    """One rank's end of an NCCL process group."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        world_size: int,
        device: torch.device,
        aborted: threading.Event | None = None,
    ):
        """`aborted`: ends a broadcast when another thread sets it."""
        self._device = device
        self._aborted = aborted or threading.Event()
        self._connected = False
        with _without_watchdog():
            options = dist.ProcessGroupNCCL.Options()
            self._group: Any = dist.ProcessGroupNCCL(store, rank, world_size, options)

    def broadcast(self, tensor: torch.Tensor, options: dist.BroadcastOptions, timeout_s: float) -> None:
        """Blocks until the broadcast has ended. Raises RuntimeError if it fails or takes too long."""
        deadline = time.monotonic() + timeout_s
        if self._connected:
            work = self._group.broadcast([tensor], options)
        else:
            work = _within(timeout_s, self._on_callers_stream(tensor, options), self._aborted)
            self._connected = True
        while not work.is_completed():
            if self._aborted.is_set():
                raise RuntimeError(ABORTED)
            if time.monotonic() > deadline:
                raise RuntimeError(f"no bucket within {timeout_s} s")
            time.sleep(POLL_S)
        if not work.is_success():  # a failed operation counts as completed
            raise RuntimeError("the NCCL broadcast failed: a peer is gone")

    def close(self) -> None:
        """Leaves the group, which unblocks its peers."""
        if self._connected:
            self._group.abort()
        else:  # a thread may still be connecting, and hold the lock
            threading.Thread(target=self._group.abort, daemon=True, name="abort NCCL group").start()

    def _on_callers_stream(
        self, tensor: torch.Tensor, options: dist.BroadcastOptions
    ) -> Callable[[], dist.Work]:
        """Returns the broadcast as a function for another thread, whose device and stream would be others."""
        stream = torch.cuda.current_stream(self._device)

        def broadcast() -> dist.Work:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                work: dist.Work = self._group.broadcast([tensor], options)
                return work

        return broadcast


@contextlib.contextmanager
def _without_watchdog() -> Iterator[None]:
    """torch reads the variable when a group is made; other groups of the process keep their watchdogs."""
    before = os.environ.get(BLOCKING_WAIT)
    os.environ[BLOCKING_WAIT] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[BLOCKING_WAIT]
        else:
            os.environ[BLOCKING_WAIT] = before


def _within(timeout_s: float, connect: Callable[[], dist.Work], aborted: threading.Event) -> dist.Work:
    result: Future[dist.Work] = Future()

    def run() -> None:
        try:
            result.set_result(connect())
        except BaseException as error:  # raised again where the result is awaited
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name="connect NCCL ranks").start()
    deadline = time.monotonic() + timeout_s
    while not wait([result], CONNECTING_POLL_S).done:
        if aborted.is_set():
            raise RuntimeError(ABORTED)
        if time.monotonic() > deadline:
            raise RuntimeError(f"the NCCL ranks did not connect within {timeout_s} s")
    return result.result()
