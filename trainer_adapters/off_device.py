"""Takes the memory of tensors off their device, and gives it back: `TrainerWorker.offload` and `onload`.

A tensor's storage is emptied and filled in place. So every view of it stays valid, such as those into flat
buffers of FSDP and ZeRO. The bytes of a GPU go to pinned host memory, those of a CPU to a temporary file.
"""

import ctypes
import io
import tempfile
from collections.abc import Iterable, Iterator

import torch

from contracts.support.free_memory import return_free_memory


class OffDevice:
    """The tensors of one worker. `take` and `give_back` alternate."""

    def __init__(self, device: torch.device):
        self._device = device
        self._taken: list[torch.UntypedStorage] = []  # emptied
        self._sizes: list[int] = []  # of the taken storages, in bytes
        self._pinned: list[torch.Tensor] = []  # host copies, which the next `take` uses again
        self._file: io.RawIOBase | None = None  # holds the bytes of a CPU

    @property
    def is_empty(self) -> bool:
        """True between `take` and `give_back`: the storages are empty."""
        return bool(self._taken)

    def take(self, tensors: Iterable[torch.Tensor]) -> None:
        """Empties the storages of those tensors that are on the device.

        If that fails, for example because the disk is full, all of them are as before. Raises RuntimeError if
        storages are empty already.
        """
        if self._taken:
            raise RuntimeError("what this rank holds is off its device already: call onload first")
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        else:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (`give_back` closes it)
        try:
            for storage in self._storages(tensors):
                self._put(storage)
                self._taken.append(storage)
                self._sizes.append(storage.nbytes())
                storage.resize_(0)
        except BaseException:
            self.give_back()
            raise
        self._free()

    def _free(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            return_free_memory()

    def give_back(self) -> None:
        """Fills the storages again. Does nothing if none is empty. If it fails, all of them are empty."""
        try:
            self._fill()
        except BaseException:
            for storage in self._taken:
                storage.resize_(0)
            self._free()
            raise
        self._taken.clear()
        self._sizes.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fill(self) -> None:
        if self._file is not None:
            self._file.seek(0)
        for number, (storage, size) in enumerate(zip(self._taken, self._sizes, strict=True)):
            storage.resize_(size)
            if self._file is None:
                _bytes_of(storage).copy_(self._pinned[number])
            else:
                _read(self._file, _memory_of(storage))

    def _storages(self, tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
        """Yields the storages that are not empty. The caller empties each before it takes the next."""
        for tensor in tensors:
            if tensor.device != self._device or not tensor.untyped_storage().nbytes():
                continue
            if not tensor.untyped_storage().resizable():  # of a mapped file
                tensor.data = tensor.data.clone()
            yield tensor.untyped_storage()

    def _put(self, storage: torch.UntypedStorage) -> None:
        if self._file is not None:
            _write(self._file, _memory_of(storage))
            return
        source = _bytes_of(storage)
        number = len(self._taken)
        if number == len(self._pinned) or self._pinned[number].numel() != source.numel():
            self._pinned[number:] = [torch.empty_like(source, device="cpu", pin_memory=True)]
        self._pinned[number].copy_(source)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Returns the `[nbytes]` uint8 tensor over a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _memory_of(storage: torch.UntypedStorage) -> memoryview:
    """Returns the host memory of a storage. A NumPy array of it would keep the storage from being resized."""
    return memoryview((ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


def _write(file: io.RawIOBase, left: memoryview) -> None:
    while left:
        left = left[file.write(left) :]


def _read(file: io.RawIOBase, left: memoryview) -> None:
    while left:
        size = file.readinto(left)
        if not size:
            raise OSError("the temporary file of what this rank holds is cut")
        left = left[size:]
