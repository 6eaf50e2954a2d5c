"""An NCCL process group whose every wait has a deadline, and that torch's watchdog does not watch.

These facts about ProcessGroupNCCL are read in torch's source. `make gpu-check` tries them on GPUs:

* Its watchdog ends the process when an operation fails, or takes longer than the group's own timeout. The
  timeout given to the operation makes no difference. Its heartbeat monitor also ends the process when another
  rank fails.
* A group made with TORCH_NCCL_BLOCKING_WAIT has neither: the caller that waits for an operation judges it.
* An operation's `wait` only orders streams, or in that mode ends at the group's timeout. So the operation is
  polled. Once it is completed, `wait` raises its error. `is_success` is not implemented for NCCL.
* The ranks connect at the first operation, inside a call that has no deadline and cannot be aborted. So the
  call runs in a thread that is abandoned at the deadline. NCCL's non-blocking mode does not help: with it
  torch waits up to 30 minutes under the lock that `abort` needs. torch also turned the mode off, since NCCL
  2.26 hung in it.
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
    """An NCCL process group, as one of its ranks holds it."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        world_size: int,
        device: torch.device,
        aborted: threading.Event | None = None,
    ):
        """Creates the group. Setting `aborted` in another thread ends a broadcast."""
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
        work.wait()  # raises what made it fail, and lets go of the tensor

    def close(self) -> None:
        """Leaves the group, which unblocks its peers."""
        if self._connected:
            self._group.abort()
        else:  # a thread may still be connecting and hold the lock
            threading.Thread(target=self._group.abort, daemon=True, name="abort NCCL group").start()

    def _on_callers_stream(
        self, tensor: torch.Tensor, options: dist.BroadcastOptions
    ) -> Callable[[], dist.Work]:
        """Returns the broadcast as a function that another thread can call.

        It keeps the caller's device and stream, because another thread has others.
        """
        stream = torch.cuda.current_stream(self._device)

        def broadcast() -> dist.Work:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                work: dist.Work = self._group.broadcast([tensor], options)
                return work

        return broadcast


@contextlib.contextmanager
def _without_watchdog() -> Iterator[None]:
    """Disables the watchdog of a group that is made inside the block.

    torch reads the variable when it makes a group, so other groups of the process keep their watchdogs.
    """
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
        except BaseException as error:  # raised again in the thread that waits for the result
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name="connect NCCL ranks").start()
    deadline = time.monotonic() + timeout_s
    while not wait([result], CONNECTING_POLL_S).done:
        if aborted.is_set():
            raise RuntimeError(ABORTED)
        if time.monotonic() > deadline:
            raise RuntimeError(f"the NCCL ranks did not connect within {timeout_s} s")
    return result.result()
