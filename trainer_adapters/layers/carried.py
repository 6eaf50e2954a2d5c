"""Runs a recurrence or a short convolution over each sequence of a pack, by attention's length classes."""

from functools import wraps
from inspect import Parameter, signature

import torch

from trainer_adapters.layers.held_packing import held_packing


def carry(mixer: torch.nn.Module) -> None:
    """Makes a mixer, which maps states `[B, T, hidden]` to such, begin at each sequence of a pack.

    Padding is on the right, so it has no effect on the states before it. The mixer is called without caches
    and masks. Outside of a pack it is unchanged.
    """
    forward = mixer.forward
    required = [
        name
        for name, parameter in signature(forward).parameters.items()
        if parameter.default is Parameter.empty and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
    ]

    @wraps(forward)
    def run(hidden_states: torch.Tensor, *args: object, **kwargs: object) -> object:
        packing = held_packing()
        if packing is None:
            return forward(hidden_states, *args, **kwargs)
        absent = dict.fromkeys(required[1:])  # positions and masks, which recurrences do not use
        mixed = [forward(states, **absent) for states in packing.classes_of(hidden_states[0])]
        if not isinstance(mixed[0], tuple):
            return packing.join(mixed).unsqueeze(0)
        return packing.join([states for states, *_ in mixed]).unsqueeze(0), *(None for _ in mixed[0][1:])

    mixer.forward = run
