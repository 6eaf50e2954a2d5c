"""The weight manifest, its buckets, and the weight group, which trainers and inference engines share.

A weight group is a torch process group separate from the default one. Its rank 0 is the trainer's rank 0, and
the source of every broadcast. Its other ranks are the engine processes of the inference servers. Its store
keys are those of torch's `new_group`, so an engine that can join such groups natively can join it.
"""

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from contracts.bucket_packer import BucketPacker
from contracts.fill_ahead import filled_ahead
from contracts.gloo import OpenedSockets
from contracts.inference import Parameter
from contracts.nccl import NcclGroup

LOOPBACK = ("127.0.0.1", "localhost", "::1")
NCCL_LIBRARY = "libnccl.so.2"


class PeerLostError(RuntimeError):
    """Raised if a broadcast fails because a peer disconnected or timed out."""

    def __init__(self, message: str, timed_out: bool):
        """Creates the error. `timed_out`: the broadcast reached its timeout."""
        super().__init__(message)
        self.timed_out = timed_out


@dataclass(frozen=True)
class WeightManifest:
    """The weights of a model in the order of the broadcast. Tied weights are sent once."""

    parameters: tuple[Parameter, ...]
    tied: dict[str, str]  # tied name -> name under which its weight is sent

    @property
    def total_bytes(self) -> int:
        """The number of bytes of one update."""
        return sum(parameter_bytes(p) for p in self.parameters)


def torch_dtype(name: str) -> torch.dtype:
    """Returns the dtype of a name, e.g. `"bfloat16"`. Raises ValueError if it is not a torch dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a torch dtype")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of a dtype, e.g. `"bfloat16"`."""
    return str(dtype).removeprefix("torch.")


def parameter_bytes(parameter: Parameter) -> int:
    """Returns the size of a parameter in bytes."""
    elements = 1
    for size in parameter.shape:
        elements *= size
    return elements * torch_dtype(parameter.dtype).itemsize


def plan_buckets(parameters: Iterable[Parameter], bucket_bytes: int) -> list[list[Parameter]]:
    """Splits consecutive parameters into buckets of one dtype each. Sender and receivers compute the same.

    A bucket has at most `bucket_bytes` bytes, unless it is a single larger tensor.
    """
    buckets: list[list[Parameter]] = []
    filled = 0
    for parameter in parameters:
        size = parameter_bytes(parameter)
        same_dtype = buckets and buckets[-1][0].dtype == parameter.dtype
        if same_dtype and filled + size <= bucket_bytes:
            buckets[-1].append(parameter)
            filled += size
        else:
            buckets.append([parameter])
            filled = size
    return buckets


def pack_bucket(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Concatenates the bytes of the tensors, without padding, into one `[bytes]` uint8 tensor."""
    return torch.cat([t.contiguous().reshape(-1).view(torch.uint8) for t in tensors])


def unpack_bucket(bucket: torch.Tensor, parameters: list[Parameter]) -> dict[str, torch.Tensor]:
    """Returns views of the `[bytes]` uint8 bucket, one tensor per parameter, by name."""
    tensors = {}
    start = 0
    for parameter in parameters:
        end = start + parameter_bytes(parameter)
        raw = bucket[start:end].view(torch_dtype(parameter.dtype))
        tensors[parameter.name] = raw.view(parameter.shape)
        start = end
    return tensors


def send_weights(
    group: "WeightGroup",
    manifest: WeightManifest,
    weights: Iterator[tuple[str, torch.Tensor]],
    bucket_bytes: int,
    timeout_s: float,
    packer: BucketPacker | None = None,
) -> None:
    """Broadcasts `weights`, which must yield the manifest's parameters in order.

    Each bucket is packed while the previous one is sent. `packer` keeps its buffers for the next update.
    Raises ValueError if `weights` does not match the manifest, and PeerLostError if a peer disconnects or
    takes longer than `timeout_s`. Errors that `weights` raises propagate.
    """
    packer = packer or BucketPacker()
    with closing(_Broadcaster(group, timeout_s)) as broadcaster:
        for bucket in plan_buckets(manifest.parameters, bucket_bytes):
            tensors = _next_tensors(weights, bucket)
            broadcaster.send(packer.pack(tensors, torch_dtype(bucket[0].dtype), group.device))
        broadcaster.wait()


def _next_tensors(weights: Iterator[tuple[str, torch.Tensor]], bucket: list[Parameter]) -> list[torch.Tensor]:
    """Returns the next tensors of `weights`. Raises ValueError if they are not the bucket's parameters."""
    tensors = []
    for parameter in bucket:
        name, tensor = next(weights)
        if name != parameter.name or tuple(tensor.shape) != parameter.shape:
            raise ValueError(
                f"weights do not follow the manifest: expected {parameter.name} "
                f"{parameter.shape}, got {name} {tuple(tensor.shape)}"
            )
        tensors.append(tensor)
    return tensors


class _Broadcaster:
    """Broadcasts one bucket at a time in a thread, so that the caller can pack the next one.

    NCCL broadcasts run in the caller's thread, because another thread has another device and stream.
    """

    def __init__(self, group: "WeightGroup", timeout_s: float) -> None:
        self._group = group
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="broadcast")
        self._under_way: list[Future[None]] = []

    def send(self, bucket: torch.Tensor) -> None:
        """Waits for the previous bucket, raises its error if there is one, and starts to send this one."""
        if self._group.backend == "nccl":
            self._group.broadcast(bucket, self._timeout_s)
            return
        self.wait()
        self._under_way.append(self._thread.submit(self._group.broadcast, bucket, self._timeout_s))

    def wait(self) -> None:
        """Waits until the current bucket is sent. Raises an error if sending failed."""
        if self._under_way:
            self._under_way.pop().result()

    def close(self) -> None:
        """Waits until the current broadcast ends, without raising its error."""
        self._thread.shutdown()


def receive_weights(
    group: "WeightGroup",
    parameters: list[Parameter],
    bucket_bytes: int,
    timeout_s: float,
    allocate: Callable[[int], torch.Tensor] | None = None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Receives an update of `send_weights`. Yields one dict of tensors per bucket, in order.

    `allocate` returns the receive buffer of a bucket, given its bytes; by default, new memory. Raises
    PeerLostError if no bucket arrives within `timeout_s`, or a peer disconnects.
    """

    def new(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=group.device)

    plan = plan_buckets(parameters, bucket_bytes)
    buffers = map(allocate or new, (sum(map(parameter_bytes, bucket)) for bucket in plan))
    with closing(group.receive(buffers, timeout_s)) as received:
        for bucket in plan:
            yield unpack_bucket(next(received), bucket)


def nccl_version() -> str | None:
    """Returns the NCCL version of this process, e.g. "2.27.3". Returns None without NCCL or a GPU."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return None
    return loaded_nccl_version() or ".".join(str(part) for part in torch.cuda.nccl.version()[:3])


def loaded_nccl_version() -> str | None:
    """Returns the version of the NCCL library that this process has loaded, or None if torch contains it.

    torch tells the version that it was built with, and another one may be installed.
    """
    found = ctypes.c_int()
    try:
        library = ctypes.CDLL(NCCL_LIBRARY, mode=os.RTLD_NOLOAD)
    except OSError:
        return None
    library.ncclGetVersion(ctypes.byref(found))
    major, rest = divmod(found.value, 10_000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def listening_store(address: str, port: int, timeout_s: float) -> dist.TCPStore:
    """Returns the master of a TCPStore that listens on `address` only. torch's listens on all addresses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()
    return dist.TCPStore(
        address,
        listener.getsockname()[1],
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=True,
    )


def connected_store(address: str, port: int, timeout_s: float) -> dist.TCPStore:
    """Returns a client of a `listening_store`. Raises RuntimeError at the timeout."""
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)


class RendezvousStore:
    """The rendezvous store that trainer rank 0 hosts for one epoch (generation) of the weight group.

    It listens on `address` only. `port` 0 chooses a free port.
    """

    def __init__(self, address: str, port: int, timeout_s: float):
        self.address = address
        self._sockets = OpenedSockets()
        self._aborted = threading.Event()
        self._store = listening_store(address, port, timeout_s)
        self.port = self._store.port

    def group(
        self, name: str, world_size: int, backend: str, timeout_s: float, probe: bool = False
    ) -> "WeightGroup":
        """Returns the weight group, with this process as rank 0, when every rank has joined.

        Raises RuntimeError at the timeout.
        """
        group = WeightGroup(
            self._store, self.address, name, 0, world_size, backend, timeout_s, probe, self._aborted
        )
        self._sockets.close()
        return group

    def abort(self) -> None:
        """Aborts the group or its rendezvous from another thread: blocked calls on all ranks raise.

        Call it again if another thread may have begun to wait after the call. For gloo it needs /dev/fd. On a
        system without it, blocked calls end at their timeout.
        """
        self._aborted.set()
        self._sockets.shut_down(self.port)


class WeightGroup:
    """One rank of the weight group. Rank 0 is the source of every broadcast.

    A rank leaves by `close`, which drops the last reference to the process group. It sends no message; the
    peers' blocked calls raise at once.
    """

    def __init__(
        self,
        store: dist.Store,
        address: str,
        name: str,
        rank: int,
        world_size: int,
        backend: str,
        timeout_s: float,
        probe: bool = False,
        aborted: threading.Event | None = None,
    ):
        """Joins the group.

        `probe`: if True, rank 0 broadcasts a byte at once. It must be equal on all ranks.
        `aborted`: event by which another thread aborts a group that is not of gloo.
        """
        self.rank = rank
        self.world_size = world_size
        self.backend = backend
        self.device = _device_of(backend)
        timeout = timedelta(seconds=timeout_s)
        prefix = dist.PrefixStore(f"{name}/", dist.PrefixStore(name, store))
        prefix = dist.PrefixStore("ipc/" if backend == "ipc" else f"{self.device.type}/", prefix)
        self._group: Any  # torch's stubs lack the base class of both backends
        if backend == "gloo":
            self._group = _gloo_group(prefix, address, rank, world_size, timeout)
        elif backend == "nccl":
            self._group = NcclGroup(prefix, rank, world_size, self.device, aborted)
        elif backend == "ipc":
            from contracts.ipc import IpcGroup  # few runs need it

            self._group = IpcGroup(prefix, rank, world_size, self.device, timeout_s, aborted)
        else:
            raise ValueError(f"backend must be gloo, nccl or ipc, not {backend!r}")
        if probe:
            try:
                self.broadcast(torch.zeros(1, dtype=torch.uint8), timeout_s)
            except BaseException:
                self.close()
                raise

    @classmethod
    def join(
        cls,
        address: str,
        port: int,
        name: str,
        rank: int,
        world_size: int,
        backend: str,
        timeout_s: float,
        probe: bool = False,
    ) -> "WeightGroup":
        """Joins the group whose store is at `address:port`. Raises RuntimeError at the timeout."""
        store = connected_store(address, port, timeout_s)
        return cls(store, address, name, rank, world_size, backend, timeout_s, probe)

    def broadcast(self, buffer: torch.Tensor, timeout_s: float) -> None:
        """Sends `buffer` (rank 0) or fills it in place (other ranks).

        Raises PeerLostError if a peer disconnects or takes longer than `timeout_s`.
        """
        group = self._group
        if group is None:
            raise PeerLostError("the group was left", False)
        on_device = buffer.to(self.device)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = timedelta(seconds=timeout_s)
        started = time.monotonic()
        try:
            if self.backend == "gloo":
                group.broadcast([on_device], options).wait()
            elif self.backend == "ipc":
                group.broadcast(on_device, timeout_s)
            else:
                group.broadcast(on_device, options, timeout_s)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # torch's error for a lost connection and for a timeout
            raise PeerLostError(str(error), time.monotonic() - started >= timeout_s) from error

    def receive(
        self, buffers: Iterator[torch.Tensor], timeout_s: float
    ) -> Generator[torch.Tensor, None, None]:
        """Receives a broadcast into each buffer, and yields the buffer.

        With gloo, a thread fills the next buffers in advance. If the generator is closed early, a broadcast
        in progress is abandoned and ends at its timeout. Raises PeerLostError as `broadcast` does.
        """
        if self.backend == "gloo":
            yield from filled_ahead(partial(self.broadcast, timeout_s=timeout_s), buffers)
            return
        for buffer in buffers:
            self.broadcast(buffer, timeout_s)
            yield buffer

    def close(self) -> None:
        """Leaves the group, which unblocks its peers."""
        if self.backend != "gloo" and self._group is not None:
            self._group.close()
        self._group = None


def _device_of(backend: str) -> torch.device:
    if backend == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    if backend == "ipc" and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _gloo_group(
    store: dist.Store, address: str, rank: int, world_size: int, timeout: timedelta
) -> dist.ProcessGroupGloo:
    """Returns a gloo group on the loopback interface if the store is on it, else on the host's default."""
    if address not in LOOPBACK:
        return dist.ProcessGroupGloo(store, rank, world_size, timeout)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, rank, world_size, options)
