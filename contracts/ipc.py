"""A process group on one device: rank 0 lends each buffer, and the other ranks copy it. No byte is sent.

On a GPU a buffer is lent by a CUDA IPC handle, on CPUs of one machine by a file in shared memory. The
rendezvous store has the numbers and bytes of that handle, which the receiver checks:

    device/<rank>      the device of a rank; `formed` then says that all are the same, or why not
    lent/<n>           the handle of the n-th buffer, which rank 0 does not touch until
    copied/<n>/<rank>  says that this rank has copied it, or why not; `done/<n>` then says that all have
    left               rank 0 has left

A rank has a buffer only once it is done. One that copied too late has perhaps copied other bytes, and fails.
"""

import contextlib
import ctypes
import json
import mmap
import os
import re
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

POLL_S = 0.0005
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file there has a random name and belongs to its user
BOOT = Path("/proc/sys/kernel/random/boot_id")
CUDA_FIELDS = 8  # of `UntypedStorage._share_cuda_`: device, handle, size, offset, counter, event


def ipc_device() -> torch.device:
    """Returns the device of this process: its GPU if it uses one, else the CPU."""
    if torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _name_of(device: torch.device) -> str:
    """Returns what two processes on the same device agree on: the GPU's UUID, or the running machine."""
    if device.type == "cuda":
        return f"GPU {torch.cuda.get_device_properties(device).uuid}"
    return f"CPUs of {BOOT.read_text().strip()}, {os.stat(SHARED_MEMORY).st_dev}"


class IpcGroup:
    """One rank of a group whose ranks are processes on one device."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        world_size: int,
        device: torch.device,
        timeout_s: float,
        aborted: threading.Event | None = None,
    ):
        """Creates the group when every rank has joined. Another thread may set `aborted` to end a wait.

        Raises RuntimeError at the timeout, and on every rank if they are not on one device.
        """
        self._store = store
        self._rank = rank
        self._others = range(1, world_size)
        self._device = device
        self._aborted = aborted or threading.Event()
        self._number = 0
        self._lender: _Lender = _CudaLender() if device.type == "cuda" else _FileLender()
        self._form(timeout_s)

    def _form(self, timeout_s: float) -> None:
        own = _name_of(self._device)
        self._store.set(f"device/{self._rank}", own)
        if self._rank == 0:
            names = [self._waited(f"device/{other}", timeout_s) for other in self._others]
            why = next((f"rank 0 is on {own}, another on {name}" for name in names if name != own), "")
            self._store.set("formed", why)
        else:
            why = self._waited("formed", timeout_s)
        if why:
            raise RuntimeError(f"backend ipc is for processes on one device: {why}")

    def broadcast(self, buffer: torch.Tensor, timeout_s: float) -> None:
        """Lends `buffer` (rank 0) until all have copied it, or fills it. Raises RuntimeError."""
        if self._rank == 0:
            self._lend(buffer, timeout_s)
        else:
            self._copy(buffer, timeout_s)
        self._number += 1

    def _lend(self, buffer: torch.Tensor, timeout_s: float) -> None:
        number = self._number
        self._store.set(f"lent/{number}", json.dumps(self._lender.lend(buffer)))
        for other in self._others:
            if why := self._waited(f"copied/{number}/{other}", timeout_s):
                raise RuntimeError(f"rank {other} did not copy: {why}")
            self._store.delete_key(f"copied/{number}/{other}")
        self._store.set(f"done/{number}", "")
        self._store.delete_key(f"done/{number - 1}")  # all have passed it
        self._store.delete_key(f"lent/{number}")
        self._lender.returned()

    def _copy(self, buffer: torch.Tensor, timeout_s: float) -> None:
        lent = json.loads(self._waited(f"lent/{self._number}", timeout_s))
        try:
            self._lender.copy(lent, buffer)
        except BaseException as error:
            self._store.set(f"copied/{self._number}/{self._rank}", f"{type(error).__name__}: {error}")
            raise
        self._store.set(f"copied/{self._number}/{self._rank}", "")
        self._waited(f"done/{self._number}", timeout_s)

    def _waited(self, key: str, timeout_s: float) -> str:
        """Returns the value of a key when it is set. Raises RuntimeError if that takes too long."""
        deadline = time.monotonic() + timeout_s
        while not self._store.check([key]):
            if self._aborted.is_set():
                raise RuntimeError("the group was aborted")
            if self._rank > 0 and self._store.check(["left"]):
                raise RuntimeError("rank 0 has left the group")
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {key} within {timeout_s} s")
            time.sleep(POLL_S)
        return self._store.get(key).decode()

    def close(self) -> None:
        """Leaves the group, and says so, so that no other rank waits for this one."""
        self._aborted.set()
        key = f"copied/{self._number}/{self._rank}" if self._rank else "left"
        with contextlib.suppress(RuntimeError):  # the store is gone, which the other ranks see too
            self._store.set(key, "it has left")
        self._lender.close()


class _Lender:
    """Lends buffers to other processes, or copies what was lent. Subclasses are of a kind of device."""

    def lend(self, buffer: torch.Tensor) -> dict[str, Any]:
        """Returns the handle by which others reach the buffer's bytes, which must not change meanwhile."""
        raise NotImplementedError

    def copy(self, lent: dict[str, Any], buffer: torch.Tensor) -> None:
        """Copies what was lent into the buffer. Raises RuntimeError if it is not what it should be."""
        raise NotImplementedError

    def returned(self) -> None:
        """Called when all have copied."""

    def close(self) -> None:
        """Frees what is kept between two buffers."""


class _FileLender(_Lender):
    """Copies each buffer into a file in shared memory. The file has no name once all have opened it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._memory: mmap.mmap | None = None
        self._file = ""  # name of the file that is mapped

    def lend(self, buffer: torch.Tensor) -> dict[str, Any]:
        if self._memory is None or len(self._memory) < buffer.nbytes:
            self.close()
            self._file = f"weights-{secrets.token_hex(16)}"
            self._path = SHARED_MEMORY / self._file
            self._memory = self._mapped(os.O_RDWR | os.O_CREAT | os.O_EXCL, buffer.nbytes)
        source = (ctypes.c_ubyte * buffer.nbytes).from_address(buffer.contiguous().data_ptr())
        self._memory[: buffer.nbytes] = source
        return {"file": self._file, "bytes": buffer.nbytes}

    def copy(self, lent: dict[str, Any], buffer: torch.Tensor) -> None:
        name = str(lent.get("file"))
        _check(lent.get("bytes") == buffer.nbytes, f"{lent.get('bytes')} bytes are lent, not {buffer.nbytes}")
        _check(re.fullmatch(r"weights-[0-9a-f]{32}", name) is not None, f"no file {name!r}")
        if name != self._file:
            self.close()
            self._path = SHARED_MEMORY / name
            self._memory = self._mapped(os.O_RDWR, None)
            self._file = name
            self._path = None  # rank 0 removes it
        assert self._memory is not None
        _check(len(self._memory) >= buffer.nbytes, "the file is shorter than what is lent")
        ctypes.memmove(buffer.data_ptr(), self._memory[: buffer.nbytes], buffer.nbytes)

    def _mapped(self, flags: int, size: int | None) -> mmap.mmap:
        assert self._path is not None
        try:
            file = os.open(self._path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RuntimeError(f"what is lent cannot be opened: {error}") from error
        try:
            if size is not None:
                os.posix_fallocate(
                    file, 0, max(1, size)
                )  # not by a signal at the first write, if there is no room
            return mmap.mmap(file, 0)
        except OSError as error:
            raise RuntimeError(f"{self._path} has no room for {size} bytes: {error}") from error
        finally:
            os.close(file)

    def returned(self) -> None:
        """Removes the file's name, because all have opened it."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def close(self) -> None:
        self.returned()
        if self._memory is not None:
            self._memory.close()
        self._memory = None
        self._file = ""


class _CudaLender(_Lender):
    """Lends the memory of the buffer itself, by a CUDA IPC handle."""

    def lend(self, buffer: torch.Tensor) -> dict[str, Any]:
        torch.cuda.synchronize(buffer.device)
        fields = buffer.untyped_storage()._share_cuda_()
        said = [field.hex() if isinstance(field, bytes) else field for field in fields]
        start = buffer.storage_offset() * buffer.element_size()
        return {"start": start, "bytes": buffer.nbytes, "handle": said}

    def copy(self, lent: dict[str, Any], buffer: torch.Tensor) -> None:
        _check(lent.get("bytes") == buffer.nbytes, f"{lent.get('bytes')} bytes are lent, not {buffer.nbytes}")
        said = lent.get("handle")
        if not (isinstance(said, list) and len(said) == CUDA_FIELDS):
            raise RuntimeError("ipc: what is lent is no handle of CUDA")
        fields = [bytes.fromhex(field) if isinstance(field, str) else field for field in said]
        fields[0] = buffer.device.index  # the sender counts its own visible devices
        storage = torch.UntypedStorage._new_shared_cuda(*fields)
        whole = torch.empty(0, dtype=torch.uint8, device=buffer.device).set_(storage)
        lent_bytes = whole[lent["start"] : lent["start"] + buffer.nbytes]
        buffer.view(torch.uint8).reshape(-1).copy_(lent_bytes)
        torch.cuda.synchronize(buffer.device)


def _check(holds: bool, why: str) -> None:
    if not holds:
        raise RuntimeError(f"ipc: {why}")
