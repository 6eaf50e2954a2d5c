"""The classes of transformers whose modules read along the pack, by kind.

Classes are named one by one: a part of a name would also match attention that needs nothing. A class that is
missing here is refused by `unknown_layers`, or by the start check.
"""

from collections.abc import Iterable

import torch
from transformers import PreTrainedConfig

from trainer_adapters.layers.carried import carry
from trainer_adapters.layers.held_packing import hold_in
from trainer_adapters.layers.indexed import index_rows

# Recurrences and short convolutions, whose state runs from token to token.
CARRIED = {
    "BambaMixer",
    "FalconH1Mixer",
    "GraniteMoeHybridMambaLayer",
    "JambaMambaMixer",
    "KimiLinearDeltaAttention",
    "Lfm2MoeShortConv",
    "Lfm2ShortConv",
    "Mamba2Mixer",
    "MiniMaxLightningAttention",
    "NemotronHMamba2Mixer",
    "OlmoHybridGatedDeltaNet",
    "Qwen3NextGatedDeltaNet",
    "Qwen3_5GatedDeltaNet",
    "Qwen3_5MoeGatedDeltaNet",
    "Zamba2MambaMixer",
}
# Sparse attention, whose indexer chooses keys of the whole input.
INDEXED = {"AXK2Attention", "DeepseekV32Attention", "GlmMoeDsaAttention", "HYV4Attention"}
PLAIN_TYPES = {"full_attention", "sliding_attention", "mlp", "moe"}  # layer types that need no class above
PREPARED = "_runs_packed"  # attribute of a prepared module
OTHER_TYPES = {"linear_attention", "conv", "hybrid", "indexed_attention"}  # those that do


def prepare(layers: Iterable[torch.nn.Module]) -> None:
    """Makes the modules in the decoder layers run within each sequence of a pack. Does so once."""
    for layer in layers:
        if not hasattr(layer, PREPARED):
            setattr(layer, PREPARED, True)
            hold_in(layer)
    for module in read_along(layers):
        if not hasattr(module, PREPARED):
            setattr(module, PREPARED, True)
            carry(module) if type(module).__name__ in CARRIED else index_rows(module)
            module.register_forward_pre_hook(_states_first, with_kwargs=True)


def _states_first(
    module: torch.nn.Module, args: tuple, kwargs: dict[str, object]
) -> tuple[tuple, dict[str, object]]:
    """Passes the states by position. Backward hooks of modules, which DeepSpeed uses, see no keywords."""
    if args:
        return args, kwargs
    return (kwargs["hidden_states"],), {name: v for name, v in kwargs.items() if name != "hidden_states"}


def read_along(layers: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Returns the modules of both kinds, each once, because layers may share one."""
    every = (module for layer in layers for module in layer.modules())
    return [module for module in dict.fromkeys(every) if type(module).__name__ in CARRIED | INDEXED]


def unknown_types(config: PreTrainedConfig) -> list[str]:
    """Returns the layer types of the text config that no class here has."""
    types = set(getattr(config.get_text_config(), "layer_types", None) or ())
    return sorted(types - PLAIN_TYPES - OTHER_TYPES)


def unknown_layers(config: PreTrainedConfig, layers: Iterable[torch.nn.Module]) -> str | None:
    """Returns the class of a decoder layer that needs a class above and has none, else None."""
    types = getattr(config.get_text_config(), "layer_types", None) or ()
    needing = (layer for layer, kind in zip(layers, types, strict=False) if kind in OTHER_TYPES)
    return next((type(layer).__name__ for layer in needing if not read_along([layer])), None)
