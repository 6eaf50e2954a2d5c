"""Runs sparse attention, which chooses keys by an indexer, over each sequence of a pack.

The module computes with its own eager attention, on the length classes of the pack and a causal mask.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature

import torch
from transformers import PreTrainedConfig

from trainer_adapters.attention import Packing, causal_mask
from trainer_adapters.layers.held_packing import held_packing


def index_rows(attention: torch.nn.Module) -> None:
    """Makes an attention module with an indexer choose keys within each sequence of a pack.

    If the module returns the chosen keys for the next layer, they become a list with one tensor per class.
    Outside of a pack the module is unchanged.
    """
    forward = attention.forward
    called = signature(forward)

    @wraps(forward)
    def run(*args: object, **kwargs: object) -> object:
        packing = held_packing()
        if packing is None:
            return forward(*args, **kwargs)
        options = called.bind(*args, **kwargs).arguments
        options |= options.pop("kwargs", {})
        window = getattr(attention, "sliding_window", None)
        attended = []
        with _eager(attention.config):
            for number, index in enumerate(packing.padded):
                rows = {name: _rows(value, packing, number) for name, value in options.items()}
                rows["attention_mask"] = causal_mask(*index.shape, window, options["hidden_states"])
                attended.append(forward(**rows))
        states, _, *chosen = zip(*attended, strict=True)
        return packing.join(states).unsqueeze(0), None, *map(list, chosen)

    attention.forward = run


def _rows(value: object, packing: Packing, number: int) -> object:
    """Returns the part of an argument for one length class: rows of states, or the class's own keys."""
    if isinstance(value, list):
        return value[number]
    if isinstance(value, tuple):
        return tuple(_rows(each, packing, number) for each in value)
    if isinstance(value, dict):
        return {name: _rows(each, packing, number) for name, each in value.items()}
    of_tokens = isinstance(value, torch.Tensor) and value.shape[:2] == (1, len(packing.shared.distinct))
    return packing.classes_of(value[0])[number] if of_tokens else value


@contextmanager
def _eager(config: PreTrainedConfig) -> Iterator[None]:
    kept = config._attn_implementation
    config._attn_implementation = "eager"
    try:
        yield
    finally:
        config._attn_implementation = kept
