"""A process group on one device: rank 0 lends each buffer, and the other ranks copy it. No byte is sent.

Rank 0 copies each buffer into a memory that the others read. On a GPU they open it by a CUDA IPC handle, on
CPUs of one machine by a file. The rendezvous store has what they need for that, and they check it:

    device/<rank>      the device of a rank; `formed` then says that all are the same, or why not
    lent/<n>           the handle of the n-th buffer's memory, which rank 0 does not touch until
    copied/<n>/<rank>  says that this rank has copied it, or why not; `done/<n>` then says that all have
    left               rank 0 has left

A rank has a buffer only once it is done. One that copied too late has perhaps copied other bytes, and fails.
"""

import contextlib
import ctypes
import json
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

POLL_S = 0.0005
PROCESSES = Path("/proc/self/ns/pid")  # those that see each other's files
BOOT = Path("/proc/sys/kernel/random/boot_id")
CUDA_FIELDS = 8  # of `UntypedStorage._share_cuda_`: device, handle, size, offset, counter, event


def _name_of(device: torch.device) -> str:
    """Returns what two processes on the same device agree on: the GPU's UUID, or the running machine."""
    if device.type == "cuda":
        return f"GPU {torch.cuda.get_device_properties(device).uuid}"
    return f"the CPUs of machine {BOOT.read_text().strip()}, {os.readlink(PROCESSES)}"


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
        self._lender: _Lender = _CudaLender(device) if device.type == "cuda" else _MemoryLender()
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
        """Lends `buffer` (rank 0) until all have copied it, or fills it. Raises RuntimeError.

        After an error the group is of no more use.
        """
        try:
            if self._rank == 0:
                self._lend(buffer, timeout_s)
            else:
                self._copy(buffer, timeout_s)
        except BaseException:
            self._aborted.set()
            raise
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
    """Lends buffers to other processes by a memory that all keep, or copies what was lent.

    Subclasses are of a kind of device.
    """

    def __init__(self) -> None:
        self._memory: Any = None
        self._size = 0
        self._of: tuple[object, object] = (0, 0)  # process and serial number of the memory

    def lend(self, buffer: torch.Tensor) -> dict[str, Any]:
        """Copies the buffer into the memory, and returns what others need to reach it."""
        source = buffer.contiguous().reshape(-1).view(torch.uint8)
        if self._memory is None or self._size < source.nbytes:
            self.close()
            self._of = (os.getpid(), int(str(self._of[1])) + 1)
            self._size = max(1, source.nbytes)
            self._allocate(self._size)
        self._write(source)
        process, serial = self._of
        return {"process": process, "serial": serial, "bytes": source.nbytes, **self._handle()}

    def copy(self, lent: dict[str, Any], buffer: torch.Tensor) -> None:
        """Copies what was lent into the buffer. Raises RuntimeError if it is not what it should be."""
        if lent.get("bytes") != buffer.nbytes or not buffer.is_contiguous():
            raise RuntimeError(f"ipc: {lent.get('bytes')} bytes are lent, not {buffer.nbytes}")
        if self._memory is None or (lent.get("process"), lent.get("serial")) != self._of:
            self.close()
            self._size = self._open(lent)
            self._of = (lent.get("process"), lent.get("serial"))
        if self._size < buffer.nbytes:
            raise RuntimeError("ipc: the memory is smaller than what is lent")
        self._read(buffer.reshape(-1).view(torch.uint8))

    def returned(self) -> None:
        """Called when all have copied."""

    def close(self) -> None:
        """Frees the memory, for this process."""
        self._memory = None

    def _allocate(self, size: int) -> None:
        raise NotImplementedError

    def _open(self, lent: dict[str, Any]) -> int:
        """Opens the memory, and returns its size in bytes."""
        raise NotImplementedError

    def _handle(self) -> dict[str, Any]:
        raise NotImplementedError

    def _write(self, source: torch.Tensor) -> None:
        raise NotImplementedError

    def _read(self, target: torch.Tensor) -> None:
        raise NotImplementedError


class _MemoryLender(_Lender):
    """Lends a file in memory that has no name, so that none is left if this process dies.

    Others open it by the number that it has in this process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._file: int | None = None  # of rank 0, until all have opened it
        self._inode = 0

    def _allocate(self, size: int) -> None:
        try:
            self._file = os.memfd_create("weights")
            os.posix_fallocate(self._file, 0, size)
            self._memory = mmap.mmap(self._file, 0)
            self._inode = os.fstat(self._file).st_ino
        except OSError as error:
            raise RuntimeError(f"ipc: there is no memory for {size} bytes: {error}") from error

    def _open(self, lent: dict[str, Any]) -> int:
        process, file, inode = (lent.get(name) for name in ("process", "file", "inode"))
        if not all(type(number) is int for number in (process, file, inode)):
            raise RuntimeError(f"ipc: {lent} is no file of a process")
        try:
            opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if os.fstat(opened).st_ino != inode:
                    raise OSError("it is another file by now")
                self._memory = mmap.mmap(opened, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(opened)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"ipc: what is lent cannot be opened: {error}") from error
        return len(self._memory)

    def _handle(self) -> dict[str, Any]:
        return {"file": self._file, "inode": self._inode}

    def _write(self, source: torch.Tensor) -> None:
        self._memory[: source.nbytes] = (ctypes.c_ubyte * source.nbytes).from_address(source.data_ptr())

    def _read(self, target: torch.Tensor) -> None:
        ctypes.memmove(target.data_ptr(), self._memory[: target.nbytes], target.nbytes)

    def returned(self) -> None:
        """Closes the file, because all have opened it. Its memory stays as long as one uses it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def close(self) -> None:
        self.returned()
        if self._memory is not None:
            self._memory.close()
        super().close()


class _CudaLender(_Lender):
    """Lends memory of the GPU by a CUDA IPC handle, which is made and opened once for each size."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._fields: list[Any] = []

    def _allocate(self, size: int) -> None:
        self._memory = torch.empty(size, dtype=torch.uint8, device=self._device)
        fields = self._memory.untyped_storage()._share_cuda_()
        self._fields = [field.hex() if isinstance(field, bytes) else field for field in fields]

    def _open(self, lent: dict[str, Any]) -> int:
        said = lent.get("handle")
        if not (isinstance(said, list) and len(said) == CUDA_FIELDS):
            raise RuntimeError("ipc: what is lent is no handle of CUDA")
        fields = [bytes.fromhex(field) if isinstance(field, str) else field for field in said]
        fields[0] = self._device.index  # the sender counts its own visible devices
        storage = torch.UntypedStorage._new_shared_cuda(*fields)
        self._memory = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
        return storage.nbytes()

    def _handle(self) -> dict[str, Any]:
        return {"handle": self._fields}

    def _write(self, source: torch.Tensor) -> None:
        self._memory[: source.nbytes].copy_(source)
        torch.cuda.synchronize(self._device)

    def _read(self, target: torch.Tensor) -> None:
        target.copy_(self._memory[: target.nbytes])
        torch.cuda.synchronize(self._device)
