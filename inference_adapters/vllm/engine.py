"""The weight side of the inference contract on vLLM's engine client: which calls its workers get, and when.

Generation is vLLM's own; `openai_routes` serves it. Every worker is a rank of the weight group, and receives
while it generates (`transport`). So both receive modes are alike, except for when generation stops: after the
first bucket, or after the last.
"""

import asyncio
import contextlib
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar

import psutil
import vllm
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.exceptions import EngineDeadError

from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    EngineInfo,
    Health,
    InferenceEngine,
    InitProcessGroupRequest,
    ProcessFigures,
    UpdateProgress,
    WeightUpdateRequest,
)
from inference_adapters.ended_engine import end_server
from inference_adapters.model_parameters import model_parameters
from inference_adapters.threads import in_daemon_thread
from inference_adapters.vllm.engine_client import EngineClient
from inference_adapters.vllm.serving import Serving
from inference_adapters.vllm.tools import capabilities_of_tools

CAPABILITIES = ["staged", "truncation", "seed", "stop_strings", "stream", "top_logprobs", "openai"]
PARTS = ("image_url", "input_audio", "audio_url", "video_url", "image_embeds", "audio_embeds")
ASK_EVERY_S = 0.02  # interval of asking workers for their state
ASK_SELDOM_S = 0.1  # interval while they generate, when an answer waits for the current steps
WATCH_EVERY_S = 1.0
Result = TypeVar("Result")


class VllmEngine(InferenceEngine):
    """An engine on vLLM; `args` are vLLM's own."""

    def __init__(self, args: Namespace):
        self.args = args
        self.serving = Serving()
        self._llm: EngineClient | None = None
        self._lost: str | None = None
        self._watching: asyncio.Task[None] | None = None  # a task that ends when vLLM's engine does

    # --- what it is -------------------------------------------------------------------------------

    def info(self) -> EngineInfo:
        return self._info

    def health(self) -> Health:
        if self._llm.errored:
            return Health(status="unhealthy", reason="vLLM's engine has ended: see the server's log")
        if self._lost:
            return Health(status="unhealthy", reason=self._lost)
        return Health(status="ready")

    def process(self) -> ProcessFigures:
        running, waiting = self._llm.load()
        return ProcessFigures(resident_bytes=_resident_bytes(), running=running, waiting=waiting)

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def tied_parameters(self) -> Mapping[str, str]:
        return self._tied

    def max_context(self) -> int:
        return self._llm.model_config.max_model_len

    def parts(self) -> Collection[str]:
        """Returns the types of content besides text that the model takes."""
        return PARTS if self._llm.model_config.is_multimodal_model else ()

    def vocabulary(self) -> int:
        return self._llm.model_config.get_vocab_size()

    # --- its life ---------------------------------------------------------------------------------

    async def start(self, version: int) -> None:
        args = self.args
        self._shapes, self._tied = await in_daemon_thread(
            model_parameters, args.model, args.revision, args.trust_remote_code, args.hf_overrides
        )
        self._llm = await in_daemon_thread(self._load)
        self._watching = asyncio.create_task(self._stop_with_engine())
        await self._llm.update_weight_version(str(version))
        await self._llm.warm_up()
        await self.serving.start(self._llm, self.args)
        nccl = (await self._ask("nccl_version"))[0]
        self._info = EngineInfo(
            engine="vllm",
            engine_version=vllm.__version__,
            model=self.args.model,
            ranks=self._llm.vllm_config.parallel_config.world_size,
            backends=["gloo", "nccl"] if nccl else ["gloo"],
            nccl_version=nccl,
            accepts_dtypes=["float32", "bfloat16", "float16"],
            kv_cache=["keep", "recompute"],
            capabilities=[*CAPABILITIES, *capabilities_of_tools(self.args)],
        )

    async def _stop_with_engine(self) -> None:
        """Ends this server when vLLM's engine has ended. vLLM cannot be restarted, but this server can."""
        while not self._llm.errored:
            await asyncio.sleep(WATCH_EVERY_S)
        end_server("vLLM's engine has ended")

    async def _unless_engine_ends(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns the result of `work`.

        Raises RuntimeError if vLLM's engine ends, because vLLM then never answers.
        """
        task = asyncio.create_task(work)
        either = {task, self._watching}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            raise
        if not task.done():
            raise RuntimeError("vLLM's engine has ended")
        return task.result()

    def _load(self) -> EngineClient:
        return EngineClient.from_engine_args(AsyncEngineArgs.from_cli_args(self.args))

    async def close(self) -> None:
        try:
            await self.serving.close()
        finally:
            if self._watching:
                self._watching.cancel()
                await asyncio.to_thread(self._llm.shutdown)

    async def abort_requests(self) -> None:
        await self._llm.abort_all()

    # --- the weight group -------------------------------------------------------------------------

    async def join_group(self, request: InitProcessGroupRequest) -> list[int]:
        return await self._unless_engine_ends(self._join_group(request))

    async def _join_group(self, request: InitProcessGroupRequest) -> list[int]:
        address = request.model_dump(
            include={"master_address", "master_port", "group_name", "rank_offset", "world_size"}
            | {"backend", "timeout_s", "probe"}
        )
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(address))
        why = "no answer"
        try:
            # torch's own timeouts do not end the wait for a store whose process is stopped.
            async with asyncio.timeout(request.timeout_s):
                answers = await self._until("joined", all, ASK_EVERY_S)
            why = next((answer for answer in answers if answer is not True), None)
        except TimeoutError:
            pass
        if why:
            raise ContractError(
                ErrorCode.RENDEZVOUS_TIMEOUT,
                f"{self._info.ranks} rank(s) from {request.rank_offset} of {request.world_size} could not "
                f"join the group at {request.master_address}:{request.master_port} within "
                f"{request.timeout_s} s: {why}",
            )
        await self._ask("enter")
        return list(range(request.rank_offset, request.rank_offset + self._info.ranks))

    def leave_group(self) -> None:
        self._leaving = asyncio.create_task(self._leave_group())  # started before any later call

    async def _leave_group(self) -> None:
        with contextlib.suppress(EngineDeadError):
            await self._ask("shutdown")

    async def receive_weights(self, request: WeightUpdateRequest, progress: UpdateProgress) -> None:
        await self._unless_engine_ends(self._receive_weights(request, progress))

    async def _receive_weights(self, request: WeightUpdateRequest, progress: UpdateProgress) -> None:
        staged = request.receive == "staged"
        parameters = [parameter.model_dump() for parameter in request.parameters]
        await self._ask("receive", parameters, request.bucket_bytes, request.timeout_s, staged)

        def begun(states: list[dict]) -> bool:
            _note(states, progress)
            return all(state["complete"] if staged else state["bytes"] for state in states)

        def applicable(states: list[dict]) -> bool:
            _note(states, progress)
            return all(state["complete"] or not state["held"] for state in states)

        await self._until("state", begun, ASK_SELDOM_S if staged else ASK_EVERY_S)
        async with self._generation_held(request, progress):
            await self._until("state", applicable, ASK_EVERY_S)
            progress.touched = True  # from here on the update can no longer be cancelled
            await self._llm.start_weight_update()
            await self._llm.update_weights(WeightTransferUpdateRequest({"tied": request.tied}))
            await self._llm.finish_weight_update()
            _note(await self._ask("state"), progress)
            await self._llm.update_weight_version(str(request.version))

    @contextlib.asynccontextmanager
    async def _generation_held(
        self, request: WeightUpdateRequest, progress: UpdateProgress
    ) -> AsyncIterator[None]:
        """Pauses generation and resumes it afterwards, unless the weights are lost."""
        held_at = None
        try:
            await self._llm.pause_generation(mode="keep", clear_cache=request.kv_cache == "recompute")
            held_at = time.monotonic()
            await self._llm.forget_cache()
            yield
            self._lost = None
        except Exception as error:
            if progress.touched:
                self._lost = f"weights were lost while they were applied: {error!r}"
            raise
        finally:
            if self._lost is None:
                await asyncio.shield(self._llm.resume_generation())
            if held_at:
                progress.paused_s = time.monotonic() - held_at

    # --- asking the workers -----------------------------------------------------------------------

    async def _ask(self, call: str, *args: object) -> list:
        """Returns every worker's result of a call."""
        return await self._llm.collective_rpc("weight_transport", args=(call, *args))

    async def _until(self, call: str, settled: Callable[[list], bool], every_s: float) -> list:
        while not settled(answers := await self._ask(call)):
            await asyncio.sleep(every_s)
        return answers


def _note(states: list[dict], progress: UpdateProgress) -> None:
    """Updates `progress` from the workers' states. Raises RuntimeError if a worker's transfer has failed."""
    progress.bytes = min(state["bytes"] for state in states)
    progress.transfer_s = max(state["seconds"] for state in states)
    if error := next((state["error"] for state in states if state["error"]), None):
        raise RuntimeError(error)


def _resident_bytes() -> int:
    """Returns the resident memory of this process and of vLLM's others, in bytes."""
    me = psutil.Process()
    resident = 0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            resident += process.memory_info().rss
    return resident
