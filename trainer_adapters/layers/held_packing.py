"""Holds the packing of a decoder layer's forward pass, for modules to which the layer does not pass it.

A layer receives `packing` as a keyword. Its hooks run in each forward pass, also in the second one of
activation checkpointing, which may run in another thread.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trainer_adapters.attention import Packing

_held: ContextVar["Packing | None"] = ContextVar("packing", default=None)


def held_packing() -> "Packing | None":
    """Returns the packing of the layer that is running, or None outside of a pack."""
    return _held.get()


def hold_in(layer: torch.nn.Module) -> None:
    """Makes the layer hold the packing that it receives, for as long as its forward pass runs."""
    layer.register_forward_pre_hook(_hold, with_kwargs=True)
    layer.register_forward_hook(_release, always_call=True)


def _hold(layer: torch.nn.Module, args: tuple, kwargs: dict[str, object]) -> None:
    _held.set(kwargs.get("packing"))


def _release(*_: object) -> None:
    _held.set(None)
