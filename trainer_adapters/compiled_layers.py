"""Compiles decoder layers with torch.compile, which fuses the operations between matrix products.

A backend calls it before it shards the layers. It must not know of sharding or of heads.

A layer is compiled once with a gradient and once without, for packs of every length. Layers of the same
kind share the result. Attention stays as it is, in the middle of each layer, because what it reads of a
packing differs from pack to pack.
"""

from collections.abc import Callable, Iterable
from functools import wraps

import torch
from transformers import AttentionInterface

from trainer_adapters.attention import PACKED, packed_attention


def compile_layers(layers: Iterable[torch.nn.Module]) -> None:
    """Has each layer run compiled."""
    AttentionInterface.register(PACKED, torch.compiler.disable(packed_attention))
    for layer in layers:
        # Hooks that shard or checkpoint the layer are called around `forward`, and not compiled.
        layer.forward = _compiled_where_packed(layer.forward)


def _compiled_where_packed(forward: Callable) -> Callable:
    """Returns a forward that is compiled for packs alone.

    The start check also runs the model's own forward, a few times, each with another length and mask.
    """
    compiled = torch.compile(forward, dynamic=True)

    @wraps(forward)
    def run(*args: object, **kwargs: object) -> object:
        return (compiled if "packing" in kwargs else forward)(*args, **kwargs)

    return run
