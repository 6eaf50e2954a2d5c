"""Activation checkpointing of decoder layers: what a layer keeps from forward to backward.

The backends call it before they shard the layers. It must not know of sharding or of heads.

`True` keeps a layer's input alone, and backward runs the layer again. "selective" also keeps the results of
what costs most: matrix products and attention. Backward then computes the cheap operations between them
again: norms, rotations, activation functions and sums. Both compute again exactly what forward computed.
"""

from collections.abc import Iterable
from functools import partial
from typing import Literal

import torch
import torch.nn.attention.varlen  # registers `torch_attn::_varlen_attn`
from torch.distributed._composable import checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

Checkpointing = bool | Literal["selective"]

aten = torch.ops.aten
# The batched product is not among them: where attention has no kernel of its own, it makes [T, T] scores.
KEPT = [
    aten.mm.default,
    aten.addmm.default,
    aten._grouped_mm.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.torch_attn._varlen_attn.default,
]


def checkpoint_layers(layers: Iterable[torch.nn.Module], kind: Checkpointing) -> None:
    """Has each layer keep what `kind` says. False leaves the layers as they are."""
    if not kind:
        return
    options = {}
    if kind == "selective":
        options = {"context_fn": partial(create_selective_checkpoint_contexts, KEPT)}
    for layer in layers:
        checkpoint(layer, **options)
