"""Names the files of a Hugging Face checkpoint, and writes its index of parameters by file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import safe_open

from extensions.stored_weights.store.manifest import VersionManifest

INDEX_NAME = "model.safetensors.index.json"
BUFFERS = "model.buffers"  # safetensors file of the model's buffers, which servers do not load
BUFFERS_SHARD = "model-buffers.safetensors"  # its name in a checkpoint


def shard_names(count: int) -> list[str]:
    """Returns the names of the weight files of a checkpoint, in order."""
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def write_index(directory: Path, manifest: VersionManifest, names: Mapping[str, Sequence[str]]) -> None:
    """Writes the index of a checkpoint. `names`: file name -> names of its parameters.

    Includes buffers if their file is in the directory.
    """
    for file in (BUFFERS, BUFFERS_SHARD):
        if (directory / file).exists():
            with safe_open(directory / file, framework="numpy") as buffers:
                names = {**names, file: list(buffers.keys())}
    weight_map = {name: file for file, held in names.items() for name in held}
    index = {"metadata": {"total_size": manifest.total_bytes}, "weight_map": weight_map}
    (directory / INDEX_NAME).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
