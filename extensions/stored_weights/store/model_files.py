"""Copies of the model files, such as config.json, from the writer's start."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from extensions.stored_weights.store.local_files import sha256_of
from extensions.stored_weights.store.manifest import ModelFile
from extensions.stored_weights.store.model_check import check_model_files
from extensions.stored_weights.store.version_files import Offer


class ModelFiles:
    """Copies of the model files, so that versions do not change with the originals."""

    def __init__(self, paths: Sequence[Path], directory: Path):
        """Raises OSError if a file cannot be copied; ValueError, BadManifestError if it is not allowed."""
        self._copies: dict[str, Path] = {}
        self._listed: list[ModelFile] = []
        for path in paths:
            copy = directory / path.name
            shutil.copyfile(path, copy)
            file = _model_file(copy)
            self._listed.append(file)
            self._copies[file.sha256] = copy
        check_model_files(self._listed)

    def add_to(self, offer: Offer, directory: Path, own: Sequence[Path]) -> None:
        """Adds the model files, and the version's own files, to the offer."""
        for sha256, copy in self._copies.items():
            offer.objects[sha256] = directory / f"{sha256}.copy"
            shutil.copyfile(copy, offer.objects[sha256])
        offer.model_files = self._listed + [_model_file(path) for path in own]
        check_model_files(offer.model_files)
        for path, file in zip(own, offer.model_files[len(self._listed) :], strict=True):
            offer.objects[file.sha256] = path


def _model_file(path: Path) -> ModelFile:
    return ModelFile(name=path.name, sha256=sha256_of(path), bytes=path.stat().st_size)
