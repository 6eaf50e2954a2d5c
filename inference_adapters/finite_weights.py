"""Finds received weights that are no numbers, before any of an update is applied.

With a weight that is not finite every token of every request would be undefined. A trainer that has diverged
sends such weights. Every adapter checks each bucket as it arrives.
"""

import math
from collections.abc import Mapping

import torch


def why_not_finite(bucket: Mapping[str, torch.Tensor]) -> str | None:
    """Returns which weight of the bucket holds a NaN or an infinite value, or None."""
    for name, tensor in bucket.items():
        # A sum is finite only if all of its terms are; one that is not may have overflowed.
        if not math.isfinite(tensor.sum().item()) and not _is_finite(tensor):
            return f"{name} holds values that are not finite (NaN or infinite)"
    return None


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.stack(torch.aminmax(tensor)).isfinite().all())
