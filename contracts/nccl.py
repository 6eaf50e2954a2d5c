"""An NCCL process group whose waits all have a deadline, and that torch's watchdog does not monitor.

It relies on these facts about ProcessGroupNCCL, from torch's source. `make gpu-check` verifies them on GPUs:

* The watchdog aborts the process when an operation fails, or exceeds the group's timeout. The timeout passed
  to the operation is ignored. The heartbeat monitor also aborts the process when another rank fails.
* A group created with TORCH_NCCL_BLOCKING_WAIT has neither: the caller that waits for an operation handles
  its error.
* `Work.wait` only orders streams, or in that mode ends at the group's timeout. So this module polls the
  operation. After completion `wait` raises the operation's error. `is_success` is not implemented for NCCL.
* The ranks connect in the first operation, a call that has no deadline and cannot be aborted. So this module
  makes it in a thread that it abandons at the deadline. NCCL's non-blocking mode does not help: in it, torch
  waits up to 30 minutes under the lock that `abort` needs. torch disabled it because NCCL 2.26 hung.
* `abort` may block for as long as other ranks of the node have not aborted (NCCL's documentation of
  `ncclCommAbort`). So it runs in a thread, and `close` has a deadline.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)
BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
POLL_S = 0.0005
CONNECTING_POLL_S = 0.05
LEAVING_S = 2.0
ABORTED = "the group was aborted"
ABORTING = "abort NCCL group"  # name of the thread


class NcclGroup:
    """One rank of an NCCL process group."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        world_size: int,
        device: torch.device,
        aborted: threading.Event | None = None,
    ):
        """Creates the group. Another thread may set `aborted` to end a broadcast."""
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
            work = _connect_within(timeout_s, self._on_callers_stream(tensor, options), self._aborted)
            self._connected = True
        while not work.is_completed():
            if self._aborted.is_set():
                raise RuntimeError(ABORTED)
            if time.monotonic() > deadline:
                raise RuntimeError(f"no bucket within {timeout_s} s")
            time.sleep(POLL_S)
        work.wait()  # raises the operation's error, and releases the tensor

    def close(self) -> None:
        """Leaves the group. Returns within `LEAVING_S` seconds, even if NCCL's abort does not.

        Peers on the same node may not notice: each rank of a group must leave by itself.
        """
        self._aborted.set()
        leaving = threading.Thread(target=self._group.abort, daemon=True, name=ABORTING)
        leaving.start()
        if self._connected:  # otherwise a thread may still be connecting, under the lock that `abort` needs
            leaving.join(LEAVING_S)
            if leaving.is_alive():
                log.warning("NCCL's abort has not ended after %g s, and goes on in a thread", LEAVING_S)

    def _on_callers_stream(
        self, tensor: torch.Tensor, options: dist.BroadcastOptions
    ) -> Callable[[], dist.Work]:
        """Returns the broadcast as a function for another thread, with this thread's device and stream."""
        stream = torch.cuda.current_stream(self._device)

        def broadcast() -> dist.Work:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                work: dist.Work = self._group.broadcast([tensor], options)
                return work

        return broadcast


@contextlib.contextmanager
def _without_watchdog() -> Iterator[None]:
    """Disables the watchdog of a group that is created inside the block.

    torch reads the variable when it creates a group, so other groups of the process keep their watchdogs.
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


def _connect_within(
    timeout_s: float, connect: Callable[[], dist.Work], aborted: threading.Event
) -> dist.Work:
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
