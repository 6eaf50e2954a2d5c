"""Compiles decoder layers with torch.compile, which fuses the operations between matrix products.

A backend calls it before it shards the layers. This module must not depend on sharding or on output heads.

Each kind of layer is compiled once with a gradient and once without, with dynamic shapes. Attention is not
compiled, because the data that it reads from a `Packing` differ from pack to pack. Layers that read along the
pack (`layers.kinds`) are refused: their gradients would differ by more than the tolerance of the kit.
"""

from collections.abc import Callable, Iterable
from functools import wraps

import torch
from transformers import AttentionInterface, AutoModelForCausalLM

from contracts.causal_model import causal_config
from trainer_adapters.attention import PACKED, packed_attention
from trainer_adapters.layers.kinds import read_along


def unfit_to_compile(model_path: str) -> str | None:
    """Returns a message if a layer of the model reads along a sequence, else None."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(causal_config(model_path, local_files_only=True))
    why = _refusal(model.get_decoder().layers)
    return why and f"{model.config.model_type} {why}"


def _refusal(layers: Iterable[torch.nn.Module]) -> str | None:
    found = read_along(layers)
    return f"has {type(found[0]).__name__}, so compile_layers=true cannot be set" if found else None


def compile_layers(layers: Iterable[torch.nn.Module]) -> None:
    """Replaces each layer's `forward` by a compiled one. Raises ValueError for layers that read along."""
    if why := _refusal(layers):
        raise ValueError(f"the model {why}")
    AttentionInterface.register(PACKED, torch.compiler.disable(packed_attention))
    for layer in layers:
        # Hooks that shard or checkpoint the layer run outside of `forward`, and are not compiled.
        layer.forward = _compiled_if_packed(layer.forward)


def _compiled_if_packed(forward: Callable) -> Callable:
    """Returns a forward that is compiled only for packs.

    The start check also runs the model's own forward, which would recompile for each length and mask.
    """
    compiled = torch.compile(forward, dynamic=True)

    @wraps(forward)
    def run(*args: object, **kwargs: object) -> object:
        return (compiled if "packing" in kwargs else forward)(*args, **kwargs)

    return run
