"""Reads and writes safetensors files with float32 or uint8 vectors and JSON values."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from extensions.stored_weights.store.tensor_file import write_tensor_file

NUMBERS = "numbers"  # name of the uint8 tensor with the JSON text

Contents = tuple[Mapping[str, torch.Tensor], dict[str, Any]]  # (CPU vectors by name, JSON values by name)


def write(path: Path, contents: Contents, sync: bool = True) -> None:
    """Writes a file. If it raises OSError, `path` may be incomplete."""
    tensors, numbers = contents
    text = np.frombuffer(json.dumps(numbers).encode(), np.uint8)
    entries = [
        (name, str(tensor.dtype).removeprefix("torch."), (len(tensor),), tensor.numpy())
        for name, tensor in tensors.items()
    ]
    write_tensor_file(path, [*entries, (NUMBERS, "uint8", (len(text),), text)], sync)


def read(path: Path) -> Contents:
    """Reads a file. Raises OSError, ValueError or SafetensorError."""
    tensors = load_file(path)
    return tensors, json.loads(bytes(tensors.pop(NUMBERS).tolist()))
