"""Activation checkpointing of decoder layers. The backends call it before they shard the layers.

`True` saves only a layer's input, and backward recomputes the layer. "selective" also saves the results of
the expensive operations, matrix products and attention. Backward then recomputes only norms, rotations,
activation functions and sums. The recomputed values are exactly those of forward.

This module must not depend on sharding or on output heads.
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
# `aten.bmm` is not included: attention without a fused kernel computes [T, T] scores by it.
GROUPED = aten._grouped_mm.default
SAVED = [
    aten.mm.default,
    aten.addmm.default,
    GROUPED,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.torch_attn._varlen_attn.default,
]


def _add_in_place(layers: Iterable[torch.nn.Module]) -> bool:
    """Returns True if experts have biases, which transformers adds to the saved products themselves."""
    return any(hasattr(module, "gate_up_proj_bias") for layer in layers for module in layer.modules())


def checkpoint_layers(layers: Iterable[torch.nn.Module], kind: Checkpointing) -> None:
    """Applies checkpointing of this kind to each layer. Does nothing if `kind` is False."""
    if not kind:
        return
    options = {}
    if kind == "selective":
        saved = [operation for operation in SAVED if operation is not GROUPED or not _add_in_place(layers)]
        options = {"context_fn": partial(create_selective_checkpoint_contexts, saved)}
    for layer in layers:
        checkpoint(layer, **options)
