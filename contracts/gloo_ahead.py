"""Enters the broadcasts of a gloo group ahead, so that the sender of one never waits for its receiver."""

import threading
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

AT_ONCE = timedelta(milliseconds=1)


def broadcast_options(timeout: timedelta) -> dist.BroadcastOptions:
    """Returns the options of a broadcast from rank 0."""
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    options.timeout = timeout
    return options


class BroadcastsAhead:
    """The broadcasts of a group that were entered and are not known to have ended.

    They hold the group's connections, until `end`: the traceback of an error keeps this object.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._entered: deque[tuple[torch.Tensor, Any]] = deque()
        self._entering = threading.Lock()  # none is entered after `end`, which any thread may call

    def __len__(self) -> int:
        return len(self._entered)

    def enter(self, buffer: torch.Tensor, timeout_s: float) -> None:
        """Enters a broadcast, which has its own time after that of the one before.

        Raises RuntimeError when the group was left.
        """
        options = broadcast_options(2 * timedelta(seconds=timeout_s))
        with self._entering:
            if self._group is None:
                raise RuntimeError("the group was left")
            self._entered.append((buffer, self._group.broadcast([buffer], options)))

    def wait(self, timeout_s: float) -> torch.Tensor:
        """Returns the buffer of the oldest one, filled. Raises RuntimeError if it fails or takes longer."""
        buffer, broadcast = self._entered[0]
        broadcast.wait(timedelta(seconds=timeout_s))
        self._entered.popleft()
        return buffer

    def end(self) -> None:
        """Leaves the group, and ends its broadcasts at once, also for a thread that waits for one.

        When one broadcast times out, gloo closes all connections. It needs a thread of the group to itself.
        """
        with self._entering:
            group = self._group
            self._group = None
        if group is not None and self._entered:
            with suppress(RuntimeError):
                group.broadcast([torch.empty(1, dtype=torch.uint8)], broadcast_options(AT_ONCE)).wait()
