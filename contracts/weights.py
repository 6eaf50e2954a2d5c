"""What both contracts share: the weight manifest, buckets, and the weight group.

A weight group is a torch process group apart from any default one: the trainer's rank 0 is rank 0
and the source of every broadcast; the inference servers' workers are the others. It is built key
for key as torch's own `new_group` builds it, so that engines which join such groups natively can.
"""

import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from contracts.inference import Parameter

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class WeightManifest:
    """Every weight of a model in the order of the broadcast; a tied one is sent once."""

    parameters: tuple[Parameter, ...]
    tied: dict[str, str]  # tied name -> name that is sent

    @property
    def total_bytes(self) -> int:
        return sum(parameter_bytes(p) for p in self.parameters)


def torch_dtype(name: str) -> torch.dtype:
    """`"bfloat16"` -> `torch.bfloat16`. Raises ValueError for anything that is not a dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a torch dtype")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def parameter_bytes(parameter: Parameter) -> int:
    elements = 1
    for size in parameter.shape:
        elements *= size
    return elements * torch_dtype(parameter.dtype).itemsize


def plan_buckets(parameters: Iterable[Parameter], bucket_bytes: int) -> list[list[Parameter]]:
    """Cut consecutive parameters into buckets: one dtype each, closed before `bucket_bytes` would
    be exceeded; a larger tensor is a bucket of its own. Both ends compute the same plan."""
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
    """Raw bytes of consecutive tensors without padding, as one uint8 tensor."""
    return torch.cat([t.contiguous().reshape(-1).view(torch.uint8) for t in tensors])


def unpack_bucket(bucket: torch.Tensor, parameters: list[Parameter]) -> dict[str, torch.Tensor]:
    """Views into the bucket, one per parameter."""
    tensors, start = {}, 0
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
) -> None:
    """Broadcast `weights`, which must yield the manifest's parameters in its order."""
    for bucket in plan_buckets(manifest.parameters, bucket_bytes):
        tensors = []
        for parameter in bucket:
            name, tensor = next(weights)
            if name != parameter.name or tuple(tensor.shape) != parameter.shape:
                raise ValueError(
                    f"weights do not follow the manifest: expected {parameter.name} "
                    f"{parameter.shape}, got {name} {tuple(tensor.shape)}"
                )
            tensors.append(tensor.to(torch_dtype(parameter.dtype)))
        group.broadcast(pack_bucket(tensors), timeout_s)


def receive_weights(
    group: "WeightGroup", parameters: list[Parameter], bucket_bytes: int, timeout_s: float
) -> Iterator[dict[str, torch.Tensor]]:
    """The other end of `send_weights`: one dict of tensors per bucket, in order."""
    for bucket in plan_buckets(parameters, bucket_bytes):
        size = sum(parameter_bytes(p) for p in bucket)
        buffer = torch.empty(size, dtype=torch.uint8, device=group.device)
        group.broadcast(buffer, timeout_s)
        yield unpack_bucket(buffer, bucket)


def nccl_version() -> str | None:
    """This process's NCCL, e.g. "2.27.3"; None where torch has none."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def listening_store(address: str, port: int, timeout_s: float) -> dist.TCPStore:
    """A rendezvous store's master that listens on `address` alone; torch's own listens on every one."""
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
    """The other end of a `listening_store`. Raises at the timeout."""
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)


class WeightStore:
    """The rendezvous store that trainer rank 0 hosts for one epoch of the weight group.

    Listens on `address` only; `port` 0 takes a free one.
    """

    def __init__(self, address: str, port: int, timeout_s: float):
        self.address = address
        self._store = listening_store(address, port, timeout_s)
        self.port = self._store.port

    def group(self, name: str, world_size: int, backend: str, timeout_s: float) -> "WeightGroup":
        """Take rank 0. Blocks until every rank has joined, or raises at the timeout."""
        return WeightGroup(self._store, self.address, name, 0, world_size, backend, timeout_s)


class WeightGroup:
    """One rank's end of the weight group. The source of every broadcast is rank 0.

    There is no goodbye: to leave, drop the last reference (`close`); that frees the peers at once.
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
    ):
        self.rank, self.world_size, self.backend = rank, world_size, backend
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        )
        timeout = timedelta(seconds=timeout_s)
        prefix = dist.PrefixStore(f"{name}/", dist.PrefixStore(name, store))
        prefix = dist.PrefixStore(f"{self.device.type}/", prefix)
        self._group: Any  # torch's stubs lack what both of its backends inherit
        if backend == "gloo":
            self._group = _gloo_group(prefix, address, rank, world_size, timeout)
        elif backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group = dist.ProcessGroupNCCL(prefix, rank, world_size, options)
        else:
            raise ValueError(f"backend must be gloo or nccl, not {backend!r}")

    @classmethod
    def join(
        cls, address: str, port: int, name: str, rank: int, world_size: int, backend: str, timeout_s: float
    ) -> "WeightGroup":
        """Join the group whose store is at `address:port`. Raises at the timeout."""
        store = connected_store(address, port, timeout_s)
        return cls(store, address, name, rank, world_size, backend, timeout_s)

    def broadcast(self, buffer: torch.Tensor, timeout_s: float) -> None:
        """Send (rank 0) or fill `buffer`, in place. Raises when a peer is gone or silent too long."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        options.timeout = timedelta(seconds=timeout_s)
        work = self._group.broadcast([buffer.to(self.device)], options)
        if self.backend == "gloo":
            work.wait()
        else:
            _wait_for_nccl(work, timeout_s)

    def close(self) -> None:
        if self.backend == "nccl" and self._group is not None:
            self._group.abort()
        self._group = None


def _wait_for_nccl(work: dist.Work, timeout_s: float) -> None:
    """NCCL's own `wait` only orders streams: it would neither block the host nor end at a timeout."""
    deadline = time.monotonic() + timeout_s
    while not work.is_completed():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no bucket within {timeout_s} s")
        time.sleep(0.0005)
    if not work.is_success():  # a failed operation counts as completed
        raise RuntimeError("the NCCL broadcast failed: a peer is gone")


def _gloo_group(
    store: dist.Store, address: str, rank: int, world_size: int, timeout: timedelta
) -> dist.ProcessGroupGloo:
    """gloo on the loopback interface when the store is there, else on the host's own."""
    if address not in LOOPBACK:
        return dist.ProcessGroupGloo(store, rank, world_size, timeout)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, rank, world_size, options)
