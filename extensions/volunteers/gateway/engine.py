"""The gateway as an engine: its completions are made by volunteers, and audited with its own model."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from importlib.metadata import version as version_of

import numpy as np
import torch
from transformers import PreTrainedModel

from contracts.channel import InitWeightChannelRequest, StoredUpdate
from contracts.end_tokens import end_tokens_in
from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    EngineInfo,
    Health,
    ProcessFigures,
    SamplingParameters,
    TokenDelta,
    UpdateProgress,
    WeightsInfo,
)
from contracts.limits import KvCacheMode
from contracts.tool_templates import knows_tools
from extensions.volunteers.gateway.models import AuditModels
from extensions.volunteers.gateway.pool import Pool
from extensions.volunteers.gateway.uploads import Uploads
from extensions.volunteers.messages import Weights
from inference_adapters.embedded import EmbeddedEngine, resident_bytes
from inference_adapters.plain_weights import check_plain_weights
from inference_adapters.threads import in_daemon_thread
from inference_adapters.tokenizer_mixin import TokenizerMixin, check_ids, load_tokenizer

CAPABILITIES = ["stream", "template_options", "prescribed_draws"]


class VolunteersEngine(TokenizerMixin, EmbeddedEngine):
    """An engine whose completions are made by volunteers.

    make_uploads: returns what decides about uploads, from the model and its end tokens.
    Raises ValueError, with a one-line message, if `model` cannot be audited.
    """

    def __init__(
        self,
        model: str,
        models: AuditModels,
        pool: Pool,
        make_uploads: Callable[[PreTrainedModel, list[int]], Uploads],
    ):
        super().__init__()
        self.model_path = model
        self.pool = pool
        self.open_public: Callable[[], contextlib.AbstractAsyncContextManager[None]] | None = None
        self.uploads: Uploads | None = None  # None until `start`
        self.channel: InitWeightChannelRequest | None = None
        self.failure: str | None = None  # why volunteers cannot reach it any more
        self._models = models
        self._make_uploads = make_uploads
        self._tokenizer = load_tokenizer(model)
        check_plain_weights(model)
        self._knows_tools = knows_tools(self._tokenizer)
        self.end_token_ids = end_tokens_in(model, self._tokenizer)
        self._listening = contextlib.AsyncExitStack()
        self._versions_run = ""  # the run whose versions the models are

    def info(self) -> EngineInfo:
        return EngineInfo(
            engine="volunteers",
            engine_version=version_of("pipelinerl"),
            model=self.model_path,
            backends=[],  # volunteers reach no weight group
            accepts_dtypes=["float32", "bfloat16", "float16"],
            kv_cache=["keep", "recompute"],
            capabilities=[*CAPABILITIES, *(["tools"] if self._knows_tools else [])],
            end_token_ids=self.end_token_ids,
        )

    def health(self) -> Health:
        if reason := self._lost or self.failure:
            return Health(status="unhealthy", reason=reason)
        return Health(status="ready")

    def process(self) -> ProcessFigures:
        return ProcessFigures(
            resident_bytes=resident_bytes(),
            running=self.pool.tasks.completions,
            waiting=len(self.pool.queue),
        )

    async def metrics(self) -> str:
        uploads = self.uploads
        if uploads is None:
            return ""
        p50, p99 = np.quantile(uploads.answer_times or [0.0], [0.5, 0.99])
        values = {
            "volunteers_active": len(self.pool.active),
            "volunteers_audit_seconds_total": uploads.auditor.seconds,
            "volunteers_audited_completions_total": uploads.auditor.completions,
            "volunteers_uploaded_bytes_total": uploads.bytes,
            'volunteers_answer_seconds{quantile="0.5"}': p50,
            'volunteers_answer_seconds{quantile="0.99"}': p99,
        }
        return "".join(f"{name} {value}\n" for name, value in values.items())

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def tied_parameters(self) -> Mapping[str, str]:
        return self._tied

    def max_context(self) -> int:
        return self._max_context

    async def start(self, version: int) -> None:
        model = await in_daemon_thread(self._models.load)
        name_of = {id(p): name for name, p in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self._tied = {name: name_of[id(p)] for name, p in every if name != name_of[id(p)]}
        self._max_context = model.config.get_text_config().max_position_embeddings
        self._vocabulary = model.get_input_embeddings().num_embeddings
        self.uploads = self._make_uploads(model, self.end_token_ids)
        self.pool.start()
        await self._listening.enter_async_context(self.open_public())

    async def close(self) -> None:
        await self._listening.aclose()
        await self.pool.close()
        if self.uploads is not None:
            await self.uploads.auditor.close()

    # --- weights ----------------------------------------------------------------------------------

    def channel_joined(self, request: InitWeightChannelRequest) -> None:
        self.channel = request

    def weights_info(self, known: WeightsInfo) -> WeightsInfo:
        if known.run is None or known.state not in ("live", "receiving"):
            return known
        if not self.pool.active:
            return known.model_copy(update={"state": "waiting"})
        return known.model_copy(update={"oldest": min(known.version, self.pool.oldest)})

    @contextlib.contextmanager
    def pause_generation(self) -> Iterator[None]:
        yield  # volunteers sample with the version of their task, whatever is loaded here

    def apply_weights(
        self,
        tensors: Mapping[str, torch.Tensor],
        tied: Mapping[str, str],
        version: int,
        kv_cache: KvCacheMode,
    ) -> None:
        if self._versions_run != self.channel.run:
            self._models.forget()
            self._versions_run = self.channel.run
        self._models.add(version, tensors)

    async def load_weights(self, update: StoredUpdate, progress: UpdateProgress) -> None:
        run = self.channel.run
        if run != self.pool.run:
            await self.pool.begin_run(run)
        await super().load_weights(update, progress)
        weights = Weights(update.version, update.manifest_sha256 or "")
        await self.pool.serve(weights, self._models.versions)

    async def abort_requests(self) -> None:
        self.pool.abort()

    # --- generation -------------------------------------------------------------------------------

    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        check_ids(prompt_token_ids, self._vocabulary)
        if sampling.seed is not None:
            raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, "seed: draws are prescribed", "seed")
        return self._generate(prompt_token_ids, sampling)

    async def _generate(
        self, prompt: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        async with contextlib.aclosing(self.pool.completion(prompt, sampling)) as deltas:
            async for delta in deltas:
                yield delta
