"""Safetensors files of float32 or byte vectors, with a JSON object."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from extensions.stored_weights.store.tensor_file import write_tensor_file

NUMBERS = "numbers"  # tensor of the JSON object's bytes

Contents = tuple[Mapping[str, torch.Tensor], dict[str, Any]]  # vectors on the CPU by name, JSON object


def write(path: Path, contents: Contents, sync: bool = True) -> None:
    """Writes a file. Raises OSError, after which the file may be incomplete."""
    tensors, numbers = contents
    text = np.frombuffer(json.dumps(numbers).encode(), np.uint8)
    entries = [
        (name, str(tensor.dtype).removeprefix("torch."), (len(tensor),), tensor.numpy())
        for name, tensor in tensors.items()
    ]
    write_tensor_file(path, [*entries, (NUMBERS, "uint8", (len(text),), text)], sync)


def read(path: Path) -> Contents:
    """Returns the contents of a file. Raises OSError, ValueError or SafetensorError if it is invalid."""
    tensors = load_file(path)
    return tensors, json.loads(bytes(tensors.pop(NUMBERS).tolist()))
