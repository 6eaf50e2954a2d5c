"""The buffers of a model, such as the routing biases of its experts: part of it, as its parameters are.

Nothing trains them. Checkpoints and exports contain the persistent ones, under the names that the base model
gives them. No server receives them, because each has those of its own copy of the model.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist

Place = tuple[torch.nn.Module, str]  # a module, and the name of its buffer in it


def persistent_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the buffers that are part of the model's files, by the base model's names."""
    return {
        name.replace(".base_layer.", "."): module._buffers[key]
        for name, (module, key) in _places(model)
        if key not in module._non_persistent_buffers_set
    }


def loaded_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns all buffers as they were loaded, before a backend moves or rounds them."""
    return {name: module._buffers[key] for name, (module, key) in _places(model)}


@torch.no_grad()
def share_buffers(model: torch.nn.Module, loaded: dict[str, torch.Tensor], device: torch.device) -> None:
    """Gives the model on every rank, in place of its own buffers, those that rank 0 has loaded.

    It is a collective. The values are rank 0's bit for bit, also where a backend has rounded them.
    """
    for name, (module, key) in _places(model):
        buffer = loaded[name].to(device).contiguous()
        if buffer.numel():
            dist.broadcast(buffer.reshape(-1).view(torch.uint8), src=0)
        module._buffers[key] = buffer


def _places(model: torch.nn.Module) -> Iterator[tuple[str, Place]]:
    for prefix, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                yield f"{prefix}.{key}" if prefix else key, (module, key)
