"""Parts that end in every way a part can."""

import os
import threading

from benchmarks.gpu_check.outcomes import FailedError, SkippedError
from benchmarks.gpu_check.parts import Part

PARTS = {
    name: Part(f"tests.gpu_check.made_up_parts:{name}", minutes=1)
    for name in ("passes", "skips", "fails", "raises", "dies")
}


def passes(dry: bool) -> list[str]:
    return [f"dry is {dry}", "a | b"]


def skips(dry: bool) -> list[str]:
    raise SkippedError("two ranks need a GPU each, and torch sees 1")


def fails(dry: bool) -> list[str]:
    raise FailedError("3 of 4 hold", "expected: 4")


def raises(dry: bool) -> list[str]:
    raise RuntimeError("CUDA error:\nan illegal memory access")


def dies(dry: bool) -> list[str]:
    os.kill(os.getpid(), 9)


def hangs(dry: bool) -> list[str]:
    threading.Event().wait()
