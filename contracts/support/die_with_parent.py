"""A process that ends with the one that started it, however that ends."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Called in the child. On Linux alone; elsewhere nothing happens.

    Python does not act on SIGTERM inside a long call in C."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
