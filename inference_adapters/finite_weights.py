"""Finds received weights that are not finite, before an update is applied.

With such a weight every token of every request would be undefined. A trainer that has diverged sends such
weights. Every adapter checks each bucket as it arrives.
"""

import math
from collections.abc import Mapping

import torch


class NotFiniteError(ValueError):
    """Weights with a NaN or an infinite value. Nothing of them was applied."""


def why_not_finite(bucket: Mapping[str, torch.Tensor]) -> str | None:
    """Returns a description of a weight in the bucket with a NaN or an infinite value, or None."""
    for name, tensor in bucket.items():
        # A sum is finite only if all its terms are. A sum that is not may have overflowed.
        if not math.isfinite(tensor.sum().item()) and not _is_finite(tensor):
            return f"{name} holds values that are not finite (NaN or infinite)"
    return None


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.stack(torch.aminmax(tensor)).isfinite().all())
