"""Lets float32 matrix products of bfloat16 values run on CUDA's tensor cores, as TF32.

The output head uses it, only around its own products. It must not know heads or models.

TF32 keeps 10 bits of a factor's mantissa, and a bfloat16 value has 7, so it stays exact. The product of two
such values has at most 16 significant bits, and float32, in which products are summed, has 24. Any other
factor loses the bits beyond 10. Nothing changes on a CPU.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SETTING = threading.Lock()


@contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    """Lets float32 matrix products on CUDA use TF32 within the block, if `allowed`.

    The setting belongs to the process and is restored after the block. CUDA reads it when a product is
    launched, so the block does not have to wait for results. Only one thread at a time changes the setting,
    because a second one would save, and later restore, the changed value. A product that another thread
    launches meanwhile uses the setting too.
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
