"""The memory-mapped files of a version, with the hashes of all parameters, for deltas and manifests."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from extensions.stored_weights.store.manifest import StoredParameter, digest_of
from extensions.stored_weights.store.tensor_file import RawBytes, TensorFile
from extensions.stored_weights.store.written import Written

FileContent = tuple[StoredParameter, ...]  # parameters of a file in order; they determine the file's bytes


@dataclass(frozen=True)
class OpenFile:
    """One file, and its parameters. It stays readable after it is renamed or deleted."""

    path: Path  # path at which it was opened
    bytes: int
    content: FileContent
    tensors: TensorFile

    @classmethod
    def open(cls, path: Path) -> "OpenFile":
        """Maps a file and hashes its parameters."""
        tensors = TensorFile.open(path)
        content = tuple(
            StoredParameter.model_validate(
                {
                    "name": entry.name,
                    "dtype": entry.dtype,
                    "shape": entry.shape,
                    "sha256": hashlib.sha256(tensors.raw(entry.name).data).hexdigest(),
                }
            )
            for entry in tensors.entries.values()
        )
        return cls(path, path.stat().st_size, content, tensors)

    @property
    def names(self) -> list[str]:
        return [parameter.name for parameter in self.content]


class OpenVersion:
    """A version that is being published, or the base of the next delta."""

    def __init__(self, written: Written, tied: dict[str, str]):
        """Hashes every parameter. Raises ValueError for a parameter that cannot be in a manifest."""
        self.version = written.version
        self.files = [OpenFile.open(path) for path in written.files]
        listed = [parameter for file in self.files for parameter in file.content]
        self.parameters = sorted(listed, key=lambda parameter: parameter.name)
        self.digest = digest_of(self.parameters, tied)

    @cached_property
    def contents(self) -> set[FileContent]:
        return {file.content for file in self.files}

    @cached_property
    def by_name(self) -> dict[str, StoredParameter]:
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def _tensors(self) -> dict[str, TensorFile]:
        return {name: file.tensors for file in self.files for name in file.names}

    def raw(self, name: str) -> RawBytes:
        return self._tensors[name].raw(name)

    def is_of_the_model_of(self, other: "OpenVersion") -> bool:
        """Returns True if both have parameters of the same names, dtypes and shapes."""
        return self._described() == other._described()

    def _described(self) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(parameter.name, parameter.dtype, parameter.shape) for parameter in self.parameters]

    def close(self) -> None:
        for file in self.files:
            file.tensors.close()
