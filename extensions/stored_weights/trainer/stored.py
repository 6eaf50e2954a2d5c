"""The versions that one session of a run's trainer writes to a store."""

import logging
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

import torch
from safetensors.torch import save

from contracts.channel import PublicKey
from contracts.weights import WeightManifest, torch_dtype
from extensions.stored_weights.store.index import BUFFERS
from extensions.stored_weights.store.retention import remove_run, retain
from extensions.stored_weights.store.signing import SigningKey
from extensions.stored_weights.store.writer import StoreWriter
from extensions.stored_weights.store.written import Written
from extensions.stored_weights.store_location import StoreLocation

log = logging.getLogger(__name__)
KEY = "weights.key"  # file in the run's directory that only its owner can read
EPOCH = 1  # constant in manifests, independent of the epochs of channels
OF_RUN = 8  # length of the prefix that the session ids of a run share
MODEL_FILES = (  # configuration and tokenizer
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.jinja",
    "*.model",
    "*.tiktoken",
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class VersionStore:
    """Writes, publishes and removes the versions of one session.

    run: id of the session. public_key: verifies its manifests.
    """

    def __init__(
        self,
        place: StoreLocation,
        model: str | None,
        manifest: WeightManifest,
        buffers: Callable[[], Mapping[str, torch.Tensor]] = dict,
        deltas: bool = False,
    ):
        """model: directory of the model, whose configuration and tokenizer are also stored.

        buffers: returns the trainer's current buffers, which are stored with the weights.
        deltas: if True, deltas are stored too.
        """
        key = SigningKey.load_or_create(place.run_dir / KEY)
        self.directory = place.directory
        self.public_key: PublicKey = key.public
        self.run = f"{key.public.id[:OF_RUN]}-{secrets.token_hex(8)}"
        self._manifest = manifest
        self._buffers = buffers
        tied = self._manifest.tied
        self.writer = StoreWriter(self.directory, self.run, key, tied, model_files(model), deltas=deltas)

    @property
    def total_bytes(self) -> int:
        """The size of one version's weights in bytes."""
        return self._manifest.total_bytes

    def write(self, version: int, weights: Iterator[tuple[str, torch.Tensor]]) -> Written:
        """Writes the weights as they are gathered. Raises OSError if the disk is full.

        Raises ValueError if `weights` does not yield the manifest's parameters in its order.
        """
        return self.writer.write_full_files(version, _raw(self._manifest, weights), self._beside)

    def _beside(self) -> dict[str, bytes]:
        buffers = {name: tensor.contiguous() for name, tensor in self._buffers().items()}
        return {BUFFERS: save(buffers)} if buffers else {}

    def retain(self, keep: int, keep_s: float, pulled: Set[int] = frozenset()) -> None:
        """Removes all versions of earlier sessions, and old ones of this session, with their files.

        Keeps the newest `keep` versions, those newer than `keep_s` seconds, and those in `pulled`.
        """
        for path in (self.directory / "runs").glob(f"{self.run[:OF_RUN]}-*"):
            if path.name != self.run:
                remove_run(self.directory, path.name, time.time())
                shutil.rmtree(path, ignore_errors=True)
        retain(self.directory, self.run, keep, keep_s, time.time(), pulled)

    def close(self) -> None:
        """Ends writing. Published versions stay."""
        self.writer.close()

    def remove(self) -> None:
        """Removes all files of the store. No other run may use it."""
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def model_files(model: str | None) -> list[Path]:
    """Returns the files of a model's directory that a complete checkpoint needs besides the weights.

    Other files are not stored, because anybody who can reach the origin can read the store.
    """
    directory = Path(model or "")
    if model is None or not directory.is_dir():
        return []
    named = {file for pattern in MODEL_FILES for file in directory.glob(pattern)}
    return sorted(file for file in named if file.is_file() and NAME.fullmatch(file.name))


def _raw(
    manifest: WeightManifest, weights: Iterator[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, str, tuple[int, ...], memoryview]]:
    """Yields name, dtype, shape and little-endian bytes of each weight, in the manifest's dtype."""
    for parameter in manifest.parameters:
        name, tensor = next(weights)
        if name != parameter.name or tuple(tensor.shape) != parameter.shape:
            raise ValueError(
                f"weights do not follow the manifest: expected {parameter.name} {parameter.shape}, got "
                f"{name} {tuple(tensor.shape)}"
            )
        # A copy, because the tensor is valid only until the iteration ends.
        copied = tensor.detach().to("cpu", torch_dtype(parameter.dtype), copy=True).contiguous()
        raw = copied.reshape(-1).view(torch.uint8).numpy()
        yield name, parameter.dtype, parameter.shape, memoryview(raw)
