"""The files beside the weights, such as config.json, as they were when the writer began."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from contracts.store.local_files import sha256_of
from contracts.store.manifest import ModelFile
from contracts.store.model_check import check_model_files
from contracts.store.version_files import Offer


class ModelFiles:
    """Copies of the files, so that a change of the originals does not change what versions hold."""

    def __init__(self, paths: Sequence[Path], directory: Path):
        """Raises OSError if a file cannot be copied; ValueError, BadManifestError if it is not allowed."""
        self._copies: dict[str, Path] = {}
        self.listed: list[ModelFile] = []
        for path in paths:
            copy = directory / path.name
            shutil.copyfile(path, copy)
            file = ModelFile(name=path.name, sha256=sha256_of(copy), bytes=copy.stat().st_size)
            self.listed.append(file)
            self._copies[file.sha256] = copy
        check_model_files(self.listed)

    def add_to(self, offer: Offer, directory: Path) -> None:
        """Makes the files part of what becomes objects."""
        for sha256, copy in self._copies.items():
            offer.objects[sha256] = directory / f"{sha256}.copy"
            shutil.copyfile(copy, offer.objects[sha256])
