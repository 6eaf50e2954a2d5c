"""Joins groups, receives updates and loads stored versions by calls to vLLM's workers (`transport`).

Every worker is a rank of the weight group, and receives while it generates. So the receive modes differ only
in when generation is paused: after the first bucket (`paused`) or after the last (`staged`).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.v1.engine.exceptions import EngineDeadError

from contracts.channel import StoredUpdate
from contracts.errors import ContractError, ErrorCode
from contracts.inference import InitProcessGroupRequest, UpdateProgress, WeightUpdateRequest
from inference_adapters.finite_weights import NotFiniteError
from inference_adapters.vllm.engine_client import EngineClient

ASK_EVERY_S = 0.02  # polling interval of the workers' state
ASK_SELDOM_S = 0.1  # polling interval while they generate, when a poll waits for the current steps


class WeightCalls:
    """Calls the workers of an engine. `lost`: reason why the weights are incomplete, or None."""

    def __init__(self, llm: EngineClient):
        self._llm = llm
        self.lost: str | None = None

    async def join(self, request: InitProcessGroupRequest, ranks: int) -> list[int]:
        """Makes the `ranks` workers join the group, and returns their ranks. Raises ContractError."""
        address = request.model_dump(
            include={"master_address", "master_port", "group_name", "rank_offset", "world_size"}
            | {"backend", "timeout_s", "probe"}
        )
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(address))
        why = "no answer"
        try:
            # torch's timeouts do not apply if the store's process is stopped (SIGSTOP).
            async with asyncio.timeout(request.timeout_s):
                answers = await self._until("joined", all, ASK_EVERY_S)
            why = next((answer for answer in answers if answer is not True), None)
        except TimeoutError:
            pass
        if why:
            raise ContractError(
                ErrorCode.RENDEZVOUS_TIMEOUT,
                f"{ranks} rank(s) from {request.rank_offset} of {request.world_size} could not "
                f"join the group at {request.master_address}:{request.master_port} within "
                f"{request.timeout_s} s: {why}",
            )
        await self.ask("enter")
        return list(range(request.rank_offset, request.rank_offset + ranks))

    async def leave(self) -> None:
        """Makes all workers leave the group."""
        with contextlib.suppress(EngineDeadError):
            await self.ask("shutdown")

    async def receive(self, request: WeightUpdateRequest, progress: UpdateProgress) -> None:
        """Receives and applies an update. Raises an error if it fails on any worker."""
        staged = request.receive == "staged"
        parameters = [parameter.model_dump() for parameter in request.parameters]
        await self.ask("receive", parameters, request.bucket_bytes, request.timeout_s, staged)

        def begun(states: list[dict]) -> bool:
            _note(states, progress)
            return all(state["complete"] if staged else state["bytes"] for state in states)

        def applicable(states: list[dict]) -> bool:
            _note(states, progress)
            return all(state["complete"] or not state["buffers_all"] for state in states)

        await self._until("state", begun, ASK_SELDOM_S if staged else ASK_EVERY_S)
        async with self._generation_paused(request, progress):
            await self._until("state", applicable, ASK_EVERY_S)
            await self._apply(request, progress)
            _note(await self.ask("state"), progress)

    async def load(self, update: StoredUpdate, progress: UpdateProgress) -> None:
        """Loads a stored version. Raises an error if it fails on any worker."""
        shapes = {name: list(shape) for name, shape in update.shapes.items()}

        def checked(states: list[dict]) -> bool:
            _check(states)
            return all(state["complete"] for state in states)

        try:
            await self.ask("load", update.version, [str(path) for path in update.files], shapes)
            await self._until("state", checked, ASK_SELDOM_S)
            async with self._generation_paused(update, progress):
                await self._apply(update, progress)
        finally:
            with contextlib.suppress(EngineDeadError):
                await self.ask("drop")

    async def _apply(self, update: WeightUpdateRequest | StoredUpdate, progress: UpdateProgress) -> None:
        progress.touched = True  # from here on the update can no longer be cancelled
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest({"tied": dict(update.tied)}))
        await self._llm.finish_weight_update()
        _check(await self.ask("state"))
        await self._llm.update_weight_version(str(update.version))

    @contextlib.asynccontextmanager
    async def _generation_paused(
        self, request: WeightUpdateRequest | StoredUpdate, progress: UpdateProgress
    ) -> AsyncIterator[None]:
        """Pauses generation and resumes it afterwards, unless the weights are lost."""
        paused_at = None
        try:
            await self._llm.pause_generation(mode="keep", clear_cache=request.kv_cache == "recompute")
            paused_at = time.monotonic()
            await self._llm.forget_cache()
            yield
            self.lost = None
        except Exception as error:
            if progress.touched:
                self.lost = f"weights were lost while they were applied: {error!r}"
            raise
        finally:
            if self.lost is None:
                await asyncio.shield(self._llm.resume_generation())
            if paused_at:
                progress.paused_s = time.monotonic() - paused_at

    # --- calls to the workers ---------------------------------------------------------------------

    async def ask(self, call: str, *args: object) -> list:
        """Returns every worker's result of a call."""
        return await self._llm.collective_rpc("weight_transport", args=(call, *args))

    async def _until(self, call: str, settled: Callable[[list], bool], every_s: float) -> list:
        while not settled(answers := await self.ask(call)):
            await asyncio.sleep(every_s)
        return answers


def _note(states: list[dict], progress: UpdateProgress) -> None:
    """Updates `progress` from the workers' states. Raises an error if a worker's transfer has failed."""
    progress.bytes = min(state["bytes"] for state in states)
    progress.transfer_s = max(state["seconds"] for state in states)
    _check(states)


def _check(states: list[dict]) -> None:
    """Raises RuntimeError if a worker's transfer has failed, and NotFiniteError for non-finite weights."""
    if error := next((state["error"] for state in states if state["error"]), None):
        raise RuntimeError(error)
    if not_finite := next((state["not_finite"] for state in states if state["not_finite"]), None):
        raise NotFiniteError(not_finite)
