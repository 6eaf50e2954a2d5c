"""Finds received weights that are no numbers, before any of an update is applied.

With a weight that is not finite every token of every request would be undefined. A trainer that has diverged
sends such weights. Every adapter checks each bucket as it arrives.
"""

from collections.abc import Mapping

import torch


def why_not_finite(bucket: Mapping[str, torch.Tensor]) -> str | None:
    """Returns which weight of the bucket holds a NaN or an infinite value, or None."""
    for name, tensor in bucket.items():
        if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():  # in one pass
            return f"{name} holds values that are not finite (NaN or infinite)"
    return None
