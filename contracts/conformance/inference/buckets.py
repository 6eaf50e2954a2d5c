"""Builds the manifest and the buckets of a weight update from the weights to be sent."""

import torch

from contracts.conformance.inference.reference import Weights
from contracts.inference import Parameter
from contracts.weights import dtype_name, pack_bucket, plan_buckets


def parameters(weights: Weights) -> list[Parameter]:
    """Returns the parameters of a weight update, in the order of `weights`."""
    return [
        Parameter(name=name, dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape))
        for name, tensor in weights.items()
    ]


def packed(weights: Weights, bucket_bytes: int) -> list[torch.Tensor]:
    """Packs `weights` into buckets, each a [bytes] uint8 tensor."""
    plan = plan_buckets(parameters(weights), bucket_bytes)
    return [pack_bucket(weights[p.name] for p in bucket) for bucket in plan]


def bucket_bytes_for(weights: Weights, count: int) -> int:
    """Returns a bucket size that splits `weights` into at least `count` buckets, if tensors suffice."""
    size = max(1, sum(tensor.nbytes for tensor in weights.values()) // count)
    order = parameters(weights)
    while size > 1 and len(plan_buckets(order, size)) < min(count, len(order)):
        size //= 2
    return size
