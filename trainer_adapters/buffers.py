"""The buffers of a model, such as the routing biases of its experts, which are not trained.

Checkpoints and exports contain the persistent buffers under the base model's names. Servers do not receive
them, because each server loads them with its copy of the model.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist

BufferKey = tuple[torch.nn.Module, str]  # a module, and the name of its buffer


def persistent_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the buffers that are part of the model's files, by the base model's names."""
    return {
        name.replace(".base_layer.", "."): module._buffers[key]
        for name, (module, key) in _buffer_keys(model)
        if key not in module._non_persistent_buffers_set
    }


def loaded_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns all buffers by name. Call it before a backend moves or rounds them."""
    return {name: module._buffers[key] for name, (module, key) in _buffer_keys(model)}


@torch.no_grad()
def share_buffers(model: torch.nn.Module, loaded: dict[str, torch.Tensor], device: torch.device) -> None:
    """Replaces the model's buffers on every rank by rank 0's `loaded` ones, bit for bit. It is a collective.

    This also undoes the rounding of buffers by a backend.
    """
    for name, (module, key) in _buffer_keys(model):
        buffer = loaded[name].to(device).contiguous()
        if buffer.numel():
            dist.broadcast(buffer.reshape(-1).view(torch.uint8), src=0)
        module._buffers[key] = buffer


def _buffer_keys(model: torch.nn.Module) -> Iterator[tuple[str, BufferKey]]:
    for prefix, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                yield f"{prefix}.{key}" if prefix else key, (module, key)
