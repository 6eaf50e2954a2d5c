"""Base class of engines whose model is in the server's process: joins weight groups and receives updates.

An adapter derives from `EmbeddedEngine`, and implements pausing, copying tensors into its model, and
generation. This module must not depend on HTTP; `weight_updates` decides which requests are allowed.
"""

import abc
import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import torch

from contracts.channel import StoredUpdate
from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    Health,
    InitProcessGroupRequest,
    Kept,
    Parameter,
    SleepRequest,
    TokenEngine,
    UpdateProgress,
    WeightUpdateRequest,
)
from contracts.limits import KvCacheMode
from contracts.support.free_memory import return_free_memory
from contracts.weights import WeightGroup, dtype_name, receive_weights
from inference_adapters.finite_weights import NotFiniteError, why_not_finite
from inference_adapters.receive_memory import ReceiveMemory
from inference_adapters.resident_memory import resident_bytes
from inference_adapters.stored_tensors import stored_tensors
from inference_adapters.threads import in_daemon_thread

__all__ = ["EmbeddedEngine", "resident_bytes"]


class EmbeddedEngine(TokenEngine):
    """An engine of one rank in one process.

    All buckets are checked and buffered before the first is applied. So if an update fails midway, or has a
    NaN, the served weights are unchanged, and generation continues. Only a failing `apply_weights` loses the
    weights. Generation then stays paused, and `health` reports unhealthy, until the next complete update.
    """

    def __init__(self) -> None:
        self._group: WeightGroup | None = None
        self._pause: contextlib.AbstractContextManager[None] | None = None  # the current pause
        self._memory = ReceiveMemory()
        self._lost: str | None = None  # why the served weights are incomplete
        self._asleep = False  # True if the current pause is a sleep
        # A single thread enters and exits pauses, and applies weights.
        self._model_thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    @abc.abstractmethod
    def pause_generation(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager that pauses generation. It is entered and exited in a worker thread.

        Inside the block no forward pass runs. Requests in flight continue after it.
        """

    @abc.abstractmethod
    def apply_weights(
        self,
        tensors: Mapping[str, torch.Tensor],
        tied: Mapping[str, str],
        version: int,
        kv_cache: KvCacheMode,
    ) -> None:
        """Copies `tensors` into the model, casting to its dtype. Called inside the pause, in the same thread.

        If `serves_received` returns True, uses the tensors as the model's weights instead of copying them.

        tensors: views into receive buffers, by Hugging Face name.
        tied: tied name -> name under which the weight is sent; every copy of a tied weight must be filled.
        version: version of tokens sampled from now on.
        kv_cache: with "recompute", requests in flight recompute their keys and values.
        """

    def buffered(self, bucket: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the bucket to keep until the update is complete. An engine may copy it to other memory."""
        return bucket

    def serves_received(self, parameters: list[Parameter]) -> bool:
        """Returns True if `apply_weights` uses the received tensors themselves as the model's weights.

        Then each update is received into the memory of the weights that the previous update replaced. So the
        model must use all tensors of the last update, and must not refer to older ones.
        """
        return False

    def release(self, keep: Kept) -> None:
        """Frees the memory of keys and values, and of the weights unless `keep` says so. Called in a pause.

        Requests in flight compute their keys and values anew after the pause. Needs `sleep`.
        """
        raise NotImplementedError

    def restore(self) -> None:
        """Allocates what `release` freed. Weights that were not kept have any values. Called in that pause.

        Does nothing if nothing is missing. Needs `sleep`.
        """
        raise NotImplementedError

    def memory_in_use(self) -> int:
        """Returns the bytes that the engine holds on its device."""
        return resident_bytes()

    def health(self) -> Health:
        if self._lost:
            return Health(status="unhealthy", reason=self._lost)
        return Health(status="ready")

    async def join_group(self, request: InitProcessGroupRequest) -> list[int]:
        try:
            # torch's timeouts do not apply if the store's process is stopped (SIGSTOP).
            async with asyncio.timeout(request.timeout_s):
                group = await in_daemon_thread(
                    WeightGroup.join,
                    request.master_address,
                    request.master_port,
                    request.group_name,
                    request.rank_offset,
                    request.world_size,
                    request.backend,
                    request.timeout_s,
                    request.probe,
                )
        except (RuntimeError, ValueError, TimeoutError) as error:  # torch.distributed raises the first two
            raise ContractError(
                ErrorCode.RENDEZVOUS_TIMEOUT,
                f"rank {request.rank_offset} of {request.world_size} could not join the group at "
                f"{request.master_address}:{request.master_port} within {request.timeout_s} s: {error!r}",
            ) from error
        self.leave_group()
        self._group = group
        return [request.rank_offset]

    def leave_group(self) -> None:
        if self._group is not None:
            # Closing waits for a pending broadcast, which an abandoned thread may still run.
            threading.Thread(target=self._group.close, daemon=True, name="close group").start()
            self._group = None

    async def receive_weights(self, request: WeightUpdateRequest, progress: UpdateProgress) -> None:
        assert self._group is not None, "the app calls this only after join_group"
        tensors: dict[str, torch.Tensor] = {}
        not_finite: list[str] = []  # messages about weights that are not finite
        started = time.monotonic()
        memory = self._memory.begin() if self.serves_received(request.parameters) else None
        buckets = receive_weights(
            self._group, request.parameters, request.bucket_bytes, request.timeout_s, memory
        )

        def receive(count: int | None) -> None:
            for bucket in islice(buckets, count):
                if progress.cancelled:
                    return
                not_finite.extend(filter(None, [why_not_finite(bucket)]))
                if not not_finite:  # otherwise the rest is received only for the other members' sake
                    tensors.update(self.buffered(bucket))
                progress.bytes += sum(tensor.nbytes for tensor in bucket.values())
                progress.transfer_s = time.monotonic() - started
                del bucket  # an error's traceback would keep it alive

        try:
            # "paused" pauses generation as late as possible: when the first bucket has arrived.
            await in_daemon_thread(receive, 1 if request.receive == "paused" else None)
            async with self._generation_paused(progress):
                await in_daemon_thread(receive, None)
                if not_finite:
                    raise ValueError(not_finite[0])
                await self._apply(tensors, request, progress)
            if memory is not None:
                self._memory.serve()
        finally:
            tensors.clear()  # an error's traceback would keep this copy of the model alive
            self._memory.end()

    async def load_weights(self, update: StoredUpdate, progress: UpdateProgress) -> None:
        tensors: dict[str, torch.Tensor] = {}
        try:
            adopted = await in_daemon_thread(self._read, update, tensors, progress)
            async with self._generation_paused(progress):
                await self._apply(tensors, update, progress)
            if adopted:
                self._memory.serve()
        finally:
            tensors.clear()  # an error's traceback would keep the files mapped
            self._memory.end()

    def _read(self, update: StoredUpdate, tensors: dict[str, torch.Tensor], progress: UpdateProgress) -> bool:
        """Reads and checks a stored version into `tensors`.

        Returns True if the engine will serve the tensors themselves. Then they are copies of the mapped
        files, which may be deleted.
        """
        stored = stored_tensors(update.version, update.files, update.shapes)
        parameters = [
            Parameter(name=name, dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape))
            for name, tensor in stored.items()
        ]
        allocate = self._memory.begin() if self.serves_received(parameters) else None
        for name, tensor in stored.items():
            if progress.cancelled:
                return False
            if why := why_not_finite({name: tensor}):
                raise NotFiniteError(why)
            if allocate is not None:
                memory = allocate(tensor.nbytes)
                tensors[name] = memory.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        if allocate is None:
            tensors.update(self.buffered(stored))
        return allocate is not None

    async def _apply(
        self,
        tensors: Mapping[str, torch.Tensor],
        update: WeightUpdateRequest | StoredUpdate,
        progress: UpdateProgress,
    ) -> None:
        progress.touched = True  # from here on the update can no longer be cancelled
        if self._asleep:
            await self._in_model_thread(self.restore)
        await self._in_model_thread(self.apply_weights, tensors, update.tied, update.version, update.kv_cache)

    @contextlib.asynccontextmanager
    async def _generation_paused(self, progress: UpdateProgress):
        """Pauses generation, and resumes it unless weights are lost, or it slept before and still does."""
        paused_at = time.monotonic()
        try:
            await self._in_model_thread(self._enter_pause)
            paused_at = time.monotonic()
            yield
            self._lost = None
            self._asleep = False
        except Exception as error:
            if progress.touched:
                self._lost = f"weights were lost while they were applied: {error!r}"
            raise
        finally:
            if self._lost is None and not self._asleep:
                await self._in_model_thread(self._exit_pause)
            progress.paused_s = time.monotonic() - paused_at

    # --- sleep ------------------------------------------------------------------------------------

    async def sleep(self, request: SleepRequest) -> int:
        before = self.memory_in_use()
        paused = asyncio.get_running_loop().run_in_executor(self._model_thread, self._enter_pause)
        try:
            async with asyncio.timeout(request.timeout_s):
                await asyncio.shield(paused)
        except TimeoutError:
            self._model_thread.submit(self._exit_pause)  # after `_enter_pause`, which cannot be cancelled
            why = f"generation or a score has not stopped after {request.timeout_s} s"
            raise ContractError(ErrorCode.SLEEP_TIMEOUT, why) from None
        self._asleep = True
        try:
            await self._in_model_thread(self._release, request.keep)
            return max(0, before - self.memory_in_use())
        except BaseException as error:
            self._lost = f"memory could not be freed: {error!r}"  # how far it came is not known
            raise

    def _release(self, keep: Kept) -> None:
        self._memory.release(served=keep == "nothing")
        self.release(keep)
        return_free_memory()

    async def wake(self) -> None:
        try:
            await self._in_model_thread(self.restore)
        except BaseException:
            await self._in_model_thread(self._release, "weights")  # a part of it may be allocated
            raise
        self._asleep = False
        await self._in_model_thread(self._exit_pause)

    # --- the pause --------------------------------------------------------------------------------

    def _enter_pause(self) -> None:
        if self._pause is None:  # still open while weights are lost, or the engine sleeps
            pause = self.pause_generation()
            pause.__enter__()
            self._pause = pause

    def _exit_pause(self) -> None:
        if self._pause is not None:
            pause = self._pause
            self._pause = None
            pause.__exit__(None, None, None)

    async def _in_model_thread(self, function: Callable[..., None], *args: object) -> None:
        """Runs `function` to completion even if the caller is cancelled: a half-entered pause has no exit."""
        future = asyncio.get_running_loop().run_in_executor(self._model_thread, function, *args)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
