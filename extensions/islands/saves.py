"""Saves the outer state of each rank of an island, next to the inner trainer's checkpoint."""

import errno
import os
from concurrent import futures
from pathlib import Path

import torch.distributed as dist

from contracts.support.files import replaced_atomically
from contracts.trainer import SaveHandle
from extensions.islands import tensor_files

Saved = tensor_files.Contents  # [elements] float32 tensors by name, and numbers


class Saving(SaveHandle):
    """A handle on the inner trainer's checkpoint and the outer files of all ranks."""

    def __init__(self, inner: SaveHandle, written: futures.Future):
        self._inner = inner
        self._written = written

    def wait(self) -> None:
        self._inner.wait()
        self._written.result()


class OuterSaves:
    """Writes one state at a time, in the background. Tensors must not change until `wait_ended` returns."""

    def __init__(self, rank: int, group: dist.ProcessGroup | None):
        """group: gloo group of all ranks for this object only; None for one rank."""
        self._rank = rank
        self._group = group
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="outer-state")
        self._written: futures.Future | None = None

    def save(self, inner: SaveHandle, directory: Path, state: Saved) -> Saving:
        self.wait_ended()
        self._written = self._thread.submit(self._write_everywhere, directory, state)
        return Saving(inner, self._written)

    def _write_everywhere(self, directory: Path, state: Saved) -> None:
        """Writes this rank's file. Raises OSError if any rank fails."""
        error: OSError | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _write(path_of(directory, self._rank), state)
        except OSError as caught:
            error = caught
        numbers = [error and (error.errno or errno.EIO)]
        if self._group:
            numbers *= self._group.size()
            dist.all_gather_object(numbers, numbers[0], group=self._group)
        if failed := [number for number in numbers if number]:
            words = f"the outer state could not be written: {os.strerror(failed[0])}"
            raise OSError(failed[0], words) from error

    def wait_ended(self) -> None:
        """Waits until writing has ended. Errors are raised by the handle's `wait`."""
        if self._written:
            futures.wait([self._written])

    def close(self) -> None:
        self.wait_ended()
        self._thread.shutdown()


def path_of(directory: Path, rank: int) -> Path:
    return directory / f"outer-{rank}.safetensors"


def _write(path: Path, state: Saved) -> None:
    with replaced_atomically(path) as unfinished:
        tensor_files.write(unfinished, state)


def read(directory: Path, rank: int) -> Saved | None:
    path = path_of(directory, rank)
    return tensor_files.read(path) if path.exists() else None
