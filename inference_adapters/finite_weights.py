"""Checks received weights for NaN and infinity, which a diverged trainer may send.

Every adapter checks each bucket on arrival, before an update is applied.
"""

import math
from collections.abc import Mapping

import torch


class NotFiniteError(ValueError):
    """Raised if weights have a NaN or an infinite value."""


def why_not_finite(bucket: Mapping[str, torch.Tensor]) -> str | None:
    """Returns a message that names a weight with a NaN or an infinite value, or None if there is none."""
    for name, tensor in bucket.items():
        # If the sum is finite, all terms are. If it is not, it may have overflowed.
        if not math.isfinite(tensor.sum().item()) and not _is_finite(tensor):
            return f"{name} holds values that are not finite (NaN or infinite)"
    return None


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.stack(torch.aminmax(tensor)).isfinite().all())
