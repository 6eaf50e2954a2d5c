"""Versions of a small model's weights, as bytes."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from extensions.stored_weights.store.manifest import ITEM_BYTES
from extensions.stored_weights.store.signing import SigningKey
from extensions.stored_weights.store.writer import Published, StoreWriter

SHAPES = {"embed": (64, 32), "norm": (32,), "layer.q": (32, 32), "layer.k": (32, 32), "head": (32, 64)}
Weights = Mapping[str, np.ndarray]  # the bytes of each parameter


def some_weights(seed: int = 0, dtype: str = "bfloat16") -> dict[str, np.ndarray]:
    """Returns random bytes for every parameter. Not all of them are finite numbers."""
    draw = np.random.default_rng(seed)
    sizes = {name: math.prod(shape) * ITEM_BYTES[dtype] for name, shape in SHAPES.items()}
    return {name: draw.integers(0, 256, size, np.uint8) for name, size in sizes.items()}


def stepped(weights: Weights, seed: int, share: float = 0.02, names=None) -> dict[str, np.ndarray]:
    """Returns the weights after a step that changed a share of the elements of 16 bits."""
    draw = np.random.default_rng(seed)
    after = {name: raw.copy() for name, raw in weights.items()}
    for name in names or after:
        elements = after[name].view(np.uint16)
        elements[draw.random(len(elements)) < share] ^= 1
        elements[0] ^= 1 + seed
    return after


def items(weights: Weights, dtype: str = "bfloat16"):
    return [(name, dtype, SHAPES[name], raw) for name, raw in weights.items()]


def new_writer(store: Path, run: str = "run", key: SigningKey | None = None, **options) -> StoreWriter:
    key = key or SigningKey.load_or_create(store.parent / f"{run}.key")
    return StoreWriter(store, run, key, **{"tied": {}, "model_files": []} | options)


def publish(
    writer: StoreWriter, version: int, weights: Weights, dtype: str = "bfloat16", epoch: int = 1
) -> Published:
    return writer.publish(writer.write_full_files(version, items(weights, dtype)), epoch)
