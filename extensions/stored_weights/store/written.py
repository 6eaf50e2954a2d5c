"""A version whose weights are in temporary files, and which is not published yet."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from extensions.stored_weights.store.tensor_file import Tensor, write_tensor_file


@dataclass(frozen=True)
class Written:
    """The unpublished files of a version, in a directory of their own."""

    version: int
    directory: Path
    files: tuple[Path, ...]
    beside: tuple[Path, ...] = ()  # further files of this version, such as its buffers

    def discard(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)


def write_files(
    version: int,
    weights: Iterable[Tensor],
    directory: Path,
    file_bytes: int,
    beside: Callable[[], Mapping[str, bytes]] = dict,
) -> Written:
    """Writes all weights to safetensors files of at most `file_bytes`; a larger tensor has its own file.

    `beside` is called at the end, and returns further files by name. Files are not synced. If it raises, the
    directory is removed.
    """
    writing = _Files(directory)
    try:
        for tensor in weights:
            nbytes = memoryview(tensor[3]).nbytes
            if writing.size and writing.size + nbytes > file_bytes:
                writing.end_file()
            writing.tensors.append(tensor)
            writing.size += nbytes
        writing.end_file()
        others = beside()
        for name, content in others.items():
            (directory / name).write_bytes(content)
    except BaseException:
        Written(version, directory, ()).discard()
        raise
    return Written(version, directory, tuple(writing.files), tuple(directory / name for name in others))


class _Files:
    """The complete files, and the buffered tensors of the next one."""

    def __init__(self, directory: Path):
        self.files: list[Path] = []
        self.tensors: list[Tensor] = []
        self.size = 0  # bytes of the tensors
        self._directory = directory

    def end_file(self) -> None:
        """Writes the buffered tensors, if there are any, to the next file."""
        if not self.tensors:
            return
        self.files.append(self._directory / f"{len(self.files)}.safetensors")
        write_tensor_file(self.files[-1], self.tensors, sync=False)
        self.tensors.clear()
        self.size = 0
