"""The inference contract on transformers' continuous batching, with the model in the server's process.

It is the default engine, and runs on a CPU or one GPU; use vLLM or SGLang for several GPUs.
"""

import contextlib
import copy
import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from threading import Event, Lock

import torch
import transformers
from transformers import PreTrainedModel

from contracts.causal_model import causal_config, load_causal
from contracts.end_tokens import end_tokens_in
from contracts.inference import (
    EngineInfo,
    Health,
    Kept,
    Parameter,
    ProcessFigures,
    SamplingParameters,
    ScoreRequest,
    ScoreResponse,
    TokenDelta,
)
from contracts.limits import KvCacheMode
from contracts.tool_templates import knows_tools
from contracts.weights import nccl_version, torch_dtype
from contracts.whole_model import IncompleteModelError, fault_in_files, fault_of_loading
from inference_adapters.embedded import EmbeddedEngine, resident_bytes
from inference_adapters.plain_weights import check_plain_weights
from inference_adapters.scoring import Scores, score_response
from inference_adapters.threads import in_daemon_thread
from inference_adapters.tokenizer_mixin import TokenizerMixin, check_ids, load_tokenizer
from inference_adapters.transformers.batched_request import Request
from inference_adapters.transformers.batching import PAGE_TOKENS, Batcher
from inference_adapters.transformers.decided import ROWS, WITH_SINKS, check_model
from inference_adapters.transformers.outbox import Outbox
from inference_adapters.transformers.row_batching import RowBatcher
from inference_adapters.transformers.scoring import score

CAPABILITIES = [
    "score",
    "score_top",
    "staged",
    "truncation",
    "seed",
    "template_options",
    "stream",
    "top_logprobs",
    "sleep",
    "prescribed_draws",
    "commitments",
]


class TransformersEngine(TokenizerMixin, EmbeddedEngine):
    """An engine on transformers. Raises ValueError, with a one-line message, if `model` cannot be served."""

    def __init__(self, model: str, dtype: str, device: str, max_batch_tokens: int, num_blocks: int):
        super().__init__()
        self.model_path = model
        self.dtype = torch_dtype(dtype)
        self.device = torch.device(device)
        self.max_batch_tokens = max_batch_tokens
        self.num_blocks = num_blocks
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda: torch sees no GPU here")
        self._tokenizer = load_tokenizer(model)
        check_plain_weights(model)
        check_model(model)
        self._knows_tools = knows_tools(self._tokenizer)
        self._ends = end_tokens_in(model, self._tokenizer)
        self._batcher: Batcher | RowBatcher | None = None  # None until `start`
        self._ids = itertools.count()
        self._live: set[Outbox] = set()
        # Acquired to change weights and to compute scores, so that a single version computes a score.
        self._weights_lock = Lock()

    def info(self) -> EngineInfo:
        nccl = nccl_version() if self.device.type == "cuda" else None
        return EngineInfo(
            engine="transformers",
            engine_version=transformers.__version__,
            model=self.model_path,
            backends=["gloo", "nccl", "ipc"] if nccl else ["gloo", "ipc"],
            nccl_version=nccl,
            accepts_dtypes=["float32", "bfloat16", "float16"],
            kv_cache=["keep", "recompute"],
            capabilities=[*CAPABILITIES, *(["tools"] if self._knows_tools else [])],
            end_token_ids=self._ends,
        )

    def health(self) -> Health:
        if not self._batcher.is_running():
            reason = f"generation has ended: {self._batcher.fatal_error!r}"
            return Health(status="unhealthy", reason=reason)
        return super().health()

    def process(self) -> ProcessFigures:
        running, _ = self._batcher.load()
        waiting = max(0, sum(not outbox.closed for outbox in self._live) - running)
        return ProcessFigures(resident_bytes=resident_bytes(), running=running, waiting=waiting)

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def tied_parameters(self) -> Mapping[str, str]:
        name_of = {id(p): name for name, p in self._model.named_parameters()}
        every = self._model.named_parameters(remove_duplicate=False)
        return {name: name_of[id(p)] for name, p in every if name != name_of[id(p)]}

    def max_context(self) -> int:
        return self._max_context

    async def start(self, version: int) -> None:
        self._model = await in_daemon_thread(self._load)
        self._shapes = {name: tuple(p.shape) for name, p in self._model.named_parameters()}
        positions = self._model.config.get_text_config().max_position_embeddings
        self._max_context = min(positions, self.num_blocks * PAGE_TOKENS)
        self._by_rows = self._model.config.model_type in ROWS
        if self._by_rows:
            self._scorer = self._model
            most_tokens = self.num_blocks * PAGE_TOKENS
            self._batcher = RowBatcher(self._model, version, self.max_batch_tokens, most_tokens)
        else:
            # Continuous batching changes the model's attention. Scores need the original, with the same
            # weights.
            self._scorer = copy.deepcopy(self._model, {id(p): p for p in self._model.parameters()})
            self._batcher = Batcher(self._model, version, self.max_batch_tokens, self.num_blocks)
        self._batcher.start()

    def _end_pause(self) -> None:
        if self._pause is not None:  # weights may be missing
            self._batcher.end_batches()
        self._exit_pause()

    def _load(self) -> PreTrainedModel:
        if why := fault_in_files(Path(self.model_path)):
            raise IncompleteModelError(f"{self.model_path}: {why}")
        config = causal_config(self.model_path, local_files_only=True)
        attention = "eager" if config.model_type in WITH_SINKS else "sdpa"
        options = {"dtype": self.dtype, "attn_implementation": attention, "local_files_only": True}
        model, report = load_causal(self.model_path, ignore_mismatched_sizes=True, **options)
        if why := fault_of_loading(model, report):
            raise IncompleteModelError(f"{self.model_path}: {why}")
        return model.to(self.device).eval().requires_grad_(False)

    async def close(self) -> None:
        if self._batcher is None:
            return
        await self.abort_requests()
        await self._in_model_thread(self._end_pause)  # a paused loop cannot end
        await in_daemon_thread(lambda: self._batcher.stop(hard_stop=True))

    # --- weights ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def pause_generation(self) -> Iterator[None]:
        with self._weights_lock, self._batcher.pause():
            yield

    def serves_received(self, parameters: list[Parameter]) -> bool:
        own = dict(self._model.named_parameters())
        return all(self._fits(own[p.name], torch_dtype(p.dtype)) for p in parameters)

    def _fits(self, parameter: torch.nn.Parameter, dtype: torch.dtype) -> bool:
        """Returns True if a received tensor of this dtype can replace the parameter's data."""
        return self.device.type == "cpu" and parameter.dtype == dtype

    @torch.no_grad()
    def apply_weights(
        self,
        tensors: Mapping[str, torch.Tensor],
        tied: Mapping[str, str],
        version: int,
        kv_cache: KvCacheMode,
    ) -> None:
        parameters = dict(self._model.named_parameters())
        adopted = all(self._fits(parameters[name], tensor.dtype) for name, tensor in tensors.items())
        for name, tensor in tensors.items():  # tied names share a parameter
            if adopted:  # `serves_received` returned True
                parameters[name].data = tensor
            else:
                parameters[name].copy_(tensor)  # casts and moves
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # forward passes run on another stream
        self._batcher.version = version
        if kv_cache == "recompute":
            self._batcher.recompute_active()

    def release(self, keep: Kept) -> None:
        self._batcher.release()
        for parameter in self._model.parameters():
            if keep == "nothing":
                parameter.data = parameter.data.new_empty(0)
            else:
                parameter.data = parameter.data.cpu()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def restore(self) -> None:
        self._batcher.restore()
        for name, parameter in self._model.named_parameters():
            if parameter.shape == self._shapes[name]:
                parameter.data = parameter.data.to(self.device)
            else:
                parameter.data = torch.empty(self._shapes[name], dtype=parameter.dtype, device=self.device)

    def memory_in_use(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.memory_reserved(self.device)
        return super().memory_in_use()

    async def abort_requests(self) -> None:
        for outbox in self._live:
            outbox.abort()

    # --- generation -------------------------------------------------------------------------------

    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        check_ids(prompt_token_ids, self._vocabulary())
        return self._generate(prompt_token_ids, sampling)

    async def _generate(
        self, prompt: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        outbox = Outbox()
        request = Request(
            request_id=str(next(self._ids)),
            initial_tokens=prompt,
            max_new_tokens=sampling.max_tokens,
            eos_token_id=[*self._ends, *sampling.stop_token_ids],
            sampling=sampling,
            outbox=outbox,
            batcher=self._batcher,
            generator=None if sampling.seed is None else torch.Generator().manual_seed(sampling.seed % 2**64),
        )
        self._live.add(outbox)
        try:
            self._batcher.submit(request)
            async for delta in outbox.deltas():
                yield delta
        finally:
            self._live.discard(outbox)
            if outbox.error is None and outbox.finish_reason in (None, "abort"):
                outbox.abort()
                self._batcher.cancel(request)

    def _vocabulary(self) -> int:
        return self._model.get_input_embeddings().num_embeddings

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        for token_ids in request.sequences:
            check_ids(token_ids, self._vocabulary(), "sequences")
        left = Event()  # set when nobody waits any more
        try:
            return await in_daemon_thread(self._score, request, left)
        finally:
            left.set()

    def _score(self, request: ScoreRequest, left: Event) -> ScoreResponse:
        with self._weights_lock:
            scored = score(
                self._scorer,
                request.sequences,
                request.temperature,
                self.max_batch_tokens,
                continues=not self._by_rows,
                top=request.top_logprobs,
                stopped=left.is_set,
            )
            version = self._batcher.version
            return score_response(request, [Scores(logprobs, version, top) for logprobs, top in scored])
