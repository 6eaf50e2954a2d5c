"""Counts the floating-point operations of training, beside what a GPU could do. It is pure."""

from collections.abc import Sequence

from contracts.model_shape import ModelShape

# Dense bfloat16 operations a second, from NVIDIA's data sheets (docs/gpu.md), by the name that CUDA gives.
PEAKS = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
}


def training_flops(shape: ModelShape, lengths: Sequence[int]) -> float:
    """Returns the operations of a forward and backward pass over sequences of these lengths.

    Each weight of a layer and of the head takes 6 a token; looking up an embedding takes none. Attention
    takes 12 for each layer, channel and pair of tokens, of which a causal mask leaves half. What activation
    checkpointing computes again does not count.
    """
    weights = shape.layers * shape.layer + shape.hidden_size + shape.embedding
    pairs = sum(length * length for length in lengths) / 2
    channels = shape.heads * shape.head_dim
    return 6.0 * weights * sum(lengths) + 12.0 * shape.layers * channels * pairs


def utilisation(flops: float, seconds: float, device: str) -> float | None:
    """Returns the share of the device's peak (MFU), or None where its peak is not known."""
    peak = PEAKS.get(device)
    return None if peak is None else flops / seconds / peak
