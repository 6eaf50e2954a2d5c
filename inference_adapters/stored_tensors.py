"""Memory-maps safetensors files of stored weights."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open


def stored_tensors(
    version: int, files: Iterable[Path], shapes: Mapping[str, Sequence[int]]
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a version by Hugging Face name.

    They map the files, even after a file is deleted. Raises ValueError if names or shapes differ from
    `shapes`.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            tensors.update((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 (no mapping)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if odd := {name: tuple(shape) for name, shape in shapes.items()}.items() ^ found.items():
        raise ValueError(f"the files of version {version} do not hold {min(odd)[0]} as it was stored")
    return tensors
