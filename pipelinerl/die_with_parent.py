"""A process that ends with the one that started it, however that ends."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent() -> None:
    """Called in the child. On Linux alone; elsewhere nothing happens.

    Not SIGTERM: Python does not act on it inside a long call in C."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
