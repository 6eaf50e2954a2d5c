"""The inference contract on vLLM's engine client: properties, start, end, and the weight group.

`openai_routes` serves generation, and `weight_calls` moves the weights.
"""

import asyncio
from argparse import Namespace
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

import vllm
from prometheus_client import generate_latest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.mistral import is_mistral_tokenizer
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.prometheus import get_prometheus_registry
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from contracts.channel import StoredUpdate
from contracts.inference import (
    EngineInfo,
    Health,
    InferenceEngine,
    InitProcessGroupRequest,
    ProcessFigures,
    ScoreRequest,
    ScoreResponse,
    UpdateProgress,
    WeightUpdateRequest,
)
from inference_adapters.ended_engine import end_server
from inference_adapters.model_parameters import model_parameters
from inference_adapters.resident_memory import resident_bytes_of_family
from inference_adapters.scoring import score_by_one_version
from inference_adapters.threads import in_daemon_thread
from inference_adapters.tokenizer_mixin import check_ids
from inference_adapters.totals import Totals
from inference_adapters.vllm import committed_states, draws
from inference_adapters.vllm.end_tokens import stop_at_all_ends
from inference_adapters.vllm.engine_client import EngineClient
from inference_adapters.vllm.scoring import score
from inference_adapters.vllm.serving import Serving
from inference_adapters.vllm.tools import capabilities_of_tools
from inference_adapters.vllm.weight_calls import WeightCalls

CAPABILITIES = ["staged", "truncation", "seed", "stop_strings", "stream", "top_logprobs", "openai"]
WATCH_EVERY_S = 1.0
Result = TypeVar("Result")


class VllmEngine(InferenceEngine):
    """An engine on vLLM. `args`: vLLM's parsed command line."""

    def __init__(self, args: Namespace):
        self.args = args
        self.serving = Serving()
        self.totals = Totals()  # `add_openai_routes` replaces it by the app's
        self._llm: EngineClient | None = None
        self._weights: WeightCalls | None = None
        self._watching: asyncio.Task[None] | None = None  # ends when vLLM's engine ends

    # --- properties -------------------------------------------------------------------------------

    def info(self) -> EngineInfo:
        return self._info

    def health(self) -> Health:
        if self._llm.errored:
            return Health(status="unhealthy", reason="vLLM's engine has ended: see the server's log")
        if self._weights.lost:
            return Health(status="unhealthy", reason=self._weights.lost)
        return Health(status="ready")

    def process(self) -> ProcessFigures:
        running, waiting = self._llm.load()
        return ProcessFigures(resident_bytes=resident_bytes_of_family(), running=running, waiting=waiting)

    async def metrics(self) -> str:
        return generate_latest(get_prometheus_registry()).decode()

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def tied_parameters(self) -> Mapping[str, str]:
        return self._tied

    def max_context(self) -> int:
        return self._llm.model_config.max_model_len

    def vocabulary(self) -> int:
        return self._llm.model_config.get_vocab_size()

    # --- start and end ----------------------------------------------------------------------------

    async def start(self, version: int) -> None:
        args = self.args
        self._shapes, self._tied = await in_daemon_thread(
            model_parameters, args.model, args.revision, args.trust_remote_code, args.hf_overrides
        )
        self._llm = await in_daemon_thread(self._load)
        ends = stop_at_all_ends(self._llm)
        self._weights = WeightCalls(self._llm)
        self._watching = asyncio.create_task(self._stop_with_engine())
        await self._llm.update_weight_version(str(version))
        await self._llm.warm_up()
        await self.serving.start(self._llm, self.args)
        nccl = (await self._weights.ask("nccl_version"))[0]
        self._info = EngineInfo(
            engine="vllm",
            engine_version=vllm.__version__,
            model=self.args.model,
            ranks=self._llm.vllm_config.parallel_config.world_size,
            backends=["gloo", "nccl"] if nccl else ["gloo"],
            nccl_version=nccl,
            accepts_dtypes=["float32", "bfloat16", "float16"],
            kv_cache=["keep", "recompute"],
            capabilities=[
                *self._first_runner_capabilities(),
                *self._template_capability(),
                *CAPABILITIES,
                *capabilities_of_tools(self.args),
            ],
            end_token_ids=ends,
        )

    def _first_runner_capabilities(self) -> list[str]:
        # `prompt_scores`, `draws` and `committed_states` extend the first model runner. The second one is
        # chosen where Triton is installed.
        is_second = self._llm.vllm_config.use_v2_model_runner
        return [] if is_second else ["score", "score_top", "prescribed_draws", "commitments"]

    def _template_capability(self) -> list[str]:
        # Mistral's own tokenizer renders conversations without a template.
        return [] if is_mistral_tokenizer(self._llm.tokenizer) else ["template_options"]

    async def _stop_with_engine(self) -> None:
        """Ends this server when vLLM's engine has ended."""
        while not self._llm.errored:
            await asyncio.sleep(WATCH_EVERY_S)
        end_server("vLLM's engine has ended")

    async def _unless_engine_ends(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns the result of `work`. Raises RuntimeError if vLLM's engine ends: it then never responds."""
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
        args = AsyncEngineArgs.from_cli_args(self.args)
        config = args.create_engine_config(UsageContext.ENGINE_CONTEXT)
        if not config.use_v2_model_runner:
            config.model_config.logits_processors = [draws.NAME, committed_states.NAME]
        return EngineClient.from_vllm_config(
            config,
            enable_log_requests=args.enable_log_requests,
            disable_log_stats=args.disable_log_stats,
            stat_loggers=[lambda config, engine: _TokenCounter(self.totals)],
        )

    async def close(self) -> None:
        try:
            await self.serving.close()
        finally:
            if self._watching:
                self._watching.cancel()
                await asyncio.to_thread(self._llm.shutdown)

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        for token_ids in request.sequences:
            check_ids(token_ids, self.vocabulary(), "sequences")
        work = score_by_one_version(request, partial(score, self._llm), lambda: self._llm.generation)
        return await self._unless_engine_ends(work)

    async def abort_requests(self) -> None:
        await self._llm.abort_all()

    # --- the weight group -------------------------------------------------------------------------

    async def join_group(self, request: InitProcessGroupRequest) -> list[int]:
        return await self._unless_engine_ends(self._weights.join(request, self._info.ranks))

    def leave_group(self) -> None:
        self._leaving = asyncio.create_task(self._weights.leave())  # its call precedes later ones

    async def receive_weights(self, request: WeightUpdateRequest, progress: UpdateProgress) -> None:
        await self._unless_engine_ends(self._weights.receive(request, progress))

    async def load_weights(self, update: StoredUpdate, progress: UpdateProgress) -> None:
        await self._unless_engine_ends(self._weights.load(update, progress))


class _TokenCounter(StatLoggerBase):
    """Counts the tokens of each vLLM step, including those of cancelled requests."""

    def __init__(self, totals: Totals):
        self.totals = totals

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        *others: object,
        **more: object,
    ) -> None:
        if iteration_stats is not None:
            self.totals.sampled_tokens += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None: ...
