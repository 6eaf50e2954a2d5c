"""Ends a process when its parent process ends."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Makes the kernel send `number` to this process when its parent ends. It works on Linux only.

    The default is SIGKILL because Python does not act on SIGTERM inside a long call in C.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
