"""Allows TF32 for float32 matrix products of bfloat16 values on CUDA, for the output head.

TF32 has 10 bits of mantissa and bfloat16 has 7, so bfloat16 factors are exact. Their product has at most 16
significant bits, and float32, in which products are summed, has 24. Other factors are rounded to 10 bits. On
a CPU it has no effect.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SETTING = threading.Lock()


@contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    """Allows TF32 for float32 matrix products on CUDA within the block, if `allowed`.

    The setting is process-wide, so products of other threads use it too. CUDA reads it when a product is
    launched, so the block does not have to wait for results. A lock prevents a second thread from saving, and
    later restoring, the changed value.
    """
    if not allowed:
        yield
        return
    matmul = torch.backends.cuda.matmul
    with _SETTING:
        before = matmul.fp32_precision
        matmul.fp32_precision = "tf32"
        try:
            yield
        finally:
            matmul.fp32_precision = before
