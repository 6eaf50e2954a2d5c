"""The inference contract on SGLang's routes `/generate` and `/update_weights_from_tensor`.

SGLang can join a weight group, but without a timeout: while it waits for a bucket, its scheduler neither
generates nor responds. So this process joins the group instead. It buffers updates in shared memory, and
passes complete ones to SGLang.
"""

import asyncio
import base64
import contextlib
import logging
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # makes ForkingPickler send a tensor as the name of its shared memory

from contracts.end_tokens import end_tokens_in
from contracts.inference import (
    EngineInfo,
    Health,
    ProcessFigures,
    SamplingParameters,
    ScoreRequest,
    ScoreResponse,
    TokenDelta,
)
from contracts.limits import KvCacheMode
from contracts.tool_templates import knows_tools
from contracts.weights import nccl_version
from inference_adapters.embedded import EmbeddedEngine, resident_bytes
from inference_adapters.ended_engine import end_server
from inference_adapters.model_parameters import model_parameters
from inference_adapters.scoring import score_by_one_version
from inference_adapters.sglang.options import SPARE, Options, environment
from inference_adapters.sglang.sent_requests import SentRequests
from inference_adapters.sglang.server_process import SglangError, SglangServer
from inference_adapters.threads import in_daemon_thread
from inference_adapters.tokenizer_mixin import TokenizerMixin, check_ids, load_tokenizer

log = logging.getLogger(__name__)
CAPABILITIES = ["score", "score_top", "staged", "template_options", "stream", "top_logprobs"]
WATCH_EVERY_S = 0.25
WEIGHTS_S = 300.0  # timeout for SGLang to load a model's weights
SHARED_MEMORY = "/dev/shm"


class SglangEngine(TokenizerMixin, EmbeddedEngine):
    """An engine in front of an SGLang server.

    Raises ValueError, with a one-line message, if the model cannot be served.
    """

    def __init__(self, options: Options, version: str):
        super().__init__()
        self._options = options
        self._engine_version = version
        self._tokenizer = load_tokenizer(options.model)
        self._knows_tools = knows_tools(self._tokenizer)
        self._ends = end_tokens_in(options.model, self._tokenizer)
        self._sglang: SglangServer | None = None
        self._watching: asyncio.Task[None] | None = None
        self._running = self._waiting = 0
        self._updating = False  # True while an update session of SGLang is open
        torch.multiprocessing.set_sharing_strategy("file_system")  # shares memory by name, without a socket

    # --- properties -------------------------------------------------------------------------------

    def info(self) -> EngineInfo:
        nccl = nccl_version()
        return EngineInfo(
            engine="sglang",
            engine_version=self._engine_version,
            model=self._options.model,
            backends=["gloo", "nccl"] if nccl else ["gloo"],
            nccl_version=nccl,
            accepts_dtypes=["float32", "bfloat16", "float16"],
            kv_cache=["keep", "recompute"],
            capabilities=[*CAPABILITIES, *(["tools"] if self._knows_tools else [])],
            end_token_ids=self._ends,
        )

    def health(self) -> Health:
        if self._sglang.ended():
            return Health(status="unhealthy", reason="SGLang has ended: see the server's log")
        return super().health()

    def process(self) -> ProcessFigures:
        resident = resident_bytes() + self._sglang.resident_bytes()
        waiting = self._waiting + self._requests.queued
        return ProcessFigures(resident_bytes=resident, running=self._running, waiting=waiting)

    async def metrics(self) -> str:
        try:
            return await self._sglang.text("/metrics")
        except SglangError as error:  # the contract's metrics must still be served
            log.warning("SGLang's metrics are left out: %s", error)
            return ""

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def tied_parameters(self) -> Mapping[str, str]:
        return self._tied

    def max_context(self) -> int:
        return self._context

    # --- start and end ----------------------------------------------------------------------------

    async def start(self, version: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._shapes, self._tied = await in_daemon_thread(model_parameters, self._options.model)
        self._sglang = SglangServer(self._options.for_sglang(version), environment(self._options.workers))
        self._requests = SentRequests(self._sglang, self._ends)
        await self._sglang.ready()
        cached = (await self._sglang.get("/server_info"))["max_total_num_tokens"]
        self._context = min(self._options.context, cached - SPARE)
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Polls SGLang's load, and ends this server when SGLang has ended."""
        while not self._sglang.ended():
            with contextlib.suppress(SglangError):
                loads = (await self._sglang.get("/v1/loads?include=core"))["loads"]
                self._running = sum(load["num_running_reqs"] for load in loads)
                self._waiting = sum(load["num_waiting_reqs"] for load in loads)
            await asyncio.sleep(WATCH_EVERY_S)
        end_server("SGLang has ended")

    async def close(self) -> None:
        if self._watching:
            self._watching.cancel()
        if self._sglang:
            await self._sglang.close()

    async def abort_requests(self) -> None:
        try:
            await self._requests.abort_all()
        except SglangError as error:  # SGLang may have ended, and its requests with it
            log.warning("SGLang's requests cannot be ended: %s", error)

    # --- weights ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def pause_generation(self) -> Iterator[None]:
        asyncio.run_coroutine_threadsafe(self._requests.hold(), self._loop).result()
        try:
            self._command("/pause_generation", mode="in_place")
            try:
                yield
            finally:
                self._command("/continue_generation")
        finally:
            self._loop.call_soon_threadsafe(self._requests.release)

    def buffered(self, bucket: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies the bucket to shared memory, which SGLang reads. So the copy is not part of the pause.

        It is CPU memory, because the GPU has no room for a second copy of the model.
        """
        size = sum(tensor.nbytes for tensor in bucket.values())
        if size > (free := shutil.disk_usage(SHARED_MEMORY).free):
            raise SglangError(
                f"{SHARED_MEMORY} is full: {free} bytes are left, and a bucket has {size}; it must hold all "
                "of the weights for each server here (a container is given more by --shm-size)"
            )
        return {name: tensor.cpu().share_memory_() for name, tensor in bucket.items()}

    def apply_weights(
        self,
        tensors: Mapping[str, torch.Tensor],
        tied: Mapping[str, str],
        version: int,
        kv_cache: KvCacheMode,
    ) -> None:
        recompute = kv_cache == "recompute"
        if recompute:
            self._command("/pause_generation", mode="retract")
        if not self._updating:  # a failed update leaves the session open
            self._command("/begin_weight_update")
            self._updating = True
        self._command(
            "/update_weights_from_tensor",
            serialized_named_tensors=[_serialized_handles(tensors) for _ in range(self._options.workers)],
            weight_version=str(version),
            flush_cache=recompute,
            within_s=WEIGHTS_S,
        )
        self._command("/end_weight_update")
        self._updating = False

    def _command(self, path: str, **body: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._sglang.post(path, **body), self._loop).result()

    # --- generation -------------------------------------------------------------------------------

    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        check_ids(prompt_token_ids, self._options.vocabulary)
        return self._requests.generate(prompt_token_ids, sampling)

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        for token_ids in request.sequences:
            check_ids(token_ids, self._options.vocabulary, "sequences")
        return await score_by_one_version(request, self._requests.score, lambda: self._requests.pauses)


def _serialized_handles(tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns the tensors' shared-memory handles for one SGLang worker, which consumes a reference each."""
    return base64.b64encode(ForkingPickler.dumps(list(tensors.items()))).decode()
