"""The inference contract: routes, wire models and the engine behind them.

What a server must offer for the pipeline to train through it. `InferenceEngine` is what an adapter
implements; `inference_adapters.app` serves any engine over HTTP. Imports no torch.
"""

import abc
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from contracts import CONTRACT_VERSION
from contracts.errors import ContractError, ErrorCode

__all__ = ["ContractError", "ErrorCode", "InferenceEngine", "TokenEngine"]

KvCacheMode = Literal["keep", "recompute"]
ReceiveMode = Literal["paused", "staged"]
Capability = Literal["score", "staged", "truncation", "seed", "stop_strings", "tools", "stream"]


class Wire(BaseModel):
    """Base of every wire model: an unknown field is refused, never ignored."""

    model_config = ConfigDict(extra="forbid")


# --- identity ---------------------------------------------------------------------------------


class EngineInfo(Wire):
    """What an engine says of itself; constant while it lives."""

    engine: str
    engine_version: str
    model: str
    ranks: int = Field(1, description="ranks this server contributes to the weight group")
    backends: list[Literal["gloo", "nccl"]]
    nccl_version: str | None = None
    accepts_dtypes: list[str] = Field(description="dtypes it casts from, e.g. float32, bfloat16")
    kv_cache: list[KvCacheMode]
    capabilities: list[Capability]


class GroupInfo(Wire):
    """The weight group that the server is a member of."""

    epoch: int
    rank_offset: int
    world_size: int


class WeightsInfo(Wire):
    """The weights that the server serves with."""

    version: int
    state: Literal["live", "receiving", "lost"]


class ProcessFigures(Wire):
    """Summed over the engine's processes."""

    resident_bytes: int
    running: int = Field(description="requests being generated")
    waiting: int = Field(description="requests queued")


class ContractInfo(EngineInfo):
    """`GET /contract`."""

    contract: int = CONTRACT_VERSION
    run: str | None
    group: GroupInfo | None
    weights: WeightsInfo
    process: ProcessFigures


class Health(Wire):
    """`GET /health`: 200 when ready, otherwise 503 with the reason."""

    status: Literal["ready", "loading", "unhealthy"]
    reason: str | None = None


# --- weights ----------------------------------------------------------------------------------


class InitProcessGroupRequest(Wire):
    """`POST /init_process_group`: join the weight group whose rank 0 and store are the trainer's."""

    run: str = Field(description="random id that the trainer renews at every start")
    takeover: bool = Field(False, description="accept another run; its requests end with `abort`")
    epoch: int = Field(ge=0, description="grows with every rebuild of the group within a run")
    group_name: str = Field(description="store prefix; contains a one-time secret")
    backend: Literal["gloo", "nccl"]
    master_address: str
    master_port: int
    rank_offset: int = Field(ge=1)
    world_size: int = Field(ge=2)
    timeout_s: float = Field(gt=0)
    nccl_version: str | None = Field(None, description="the trainer's NCCL, compared before joining")


class InitProcessGroupResponse(Wire):
    """Sent once the server's ranks have joined."""

    ranks: list[int]


class Parameter(Wire):
    """One tensor of a weight update: Hugging Face state-dict name, torch dtype name, shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    dtype: str
    shape: tuple[int, ...]


class WeightUpdateRequest(Wire):
    """`POST /request_weight_update`: validated before any collective, then received bucket by bucket."""

    run: str
    epoch: int
    version: int = Field(ge=0, description="number of optimizer steps closed; 0 = initial weights")
    parameters: list[Parameter] = Field(min_length=1, description="in the order of the broadcast")
    tied: dict[str, str] = Field(default_factory=dict, description="tied name -> name that is sent")
    bucket_bytes: int = Field(gt=0)
    kv_cache: KvCacheMode = "keep"
    receive: ReceiveMode = "paused"
    timeout_s: float = Field(gt=0, description="longest silence between two buckets, from the 202")


class WeightUpdateAccepted(Wire):
    """The 202: valid, and about to enter the broadcast."""

    state: Literal["receiving"] = "receiving"


class WeightUpdateStatus(Wire):
    """`GET /weight_update/{version}`: how that update ended, or that it has not."""

    run: str
    epoch: int
    version: int
    state: Literal["receiving", "live", "failed"] = "receiving"
    touched: bool = Field(False, description="whether any bucket was applied to the served weights")
    error: str | None = None
    paused_s: float = Field(0.0, description="seconds for which generation stood still")
    transfer_s: float = Field(0.0, description="seconds from the 202 to the last bucket")
    bytes: int = 0


class AbortWeightUpdateRequest(Wire):
    """`POST /abort_weight_update`: call off an update to which nothing has been sent."""

    run: str
    epoch: int
    version: int


# --- generation -------------------------------------------------------------------------------


class GenerationRequest(Wire):
    """Fields of chat and text completions. Those not honoured here are refused with 422."""

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0)
    n: int = Field(1, ge=1)
    stream: bool = False
    stop_token_ids: list[int] = Field(default_factory=list)
    top_p: float | None = Field(None, gt=0, le=1, description="needs `truncation`")
    top_k: int | None = Field(None, description="needs `truncation`; null, 0 and -1 mean all")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="needs `seed`; choice i has seed + i")
    stop: str | list[str] | None = Field(None, description="needs `stop_strings`")


class ChatCompletionRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    logprobs: bool = False
    max_completion_tokens: int | None = Field(None, ge=1, description="OpenAI's newer name")
    tools: list[dict[str, Any]] | None = Field(None, description="needs `tools`")
    tool_choice: str | dict[str, Any] | None = Field(None, description="auto, or none: a call is text")


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`; `prompt` is text or token ids."""

    prompt: str | list[int]
    logprobs: bool | int | None = None


class VersionSpan(Wire):
    """Half-open span of sampled tokens that one weight version sampled."""

    version: int
    start: int
    end: int


class ScoreRequest(Wire):
    """`POST /score` (capability): log-probabilities of given token ids under the live weights."""

    sequences: list[list[int]] = Field(min_length=1)
    temperature: float = Field(1.0, gt=0)


class ScoreResponse(Wire):
    """`logprobs[i][j]` is log p(sequences[i][j+1] | sequences[i][:j+1]): one fewer than the ids."""

    logprobs: list[list[float]]
    version: int


# --- the engine -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplingParameters:
    """How to sample one completion. `temperature` 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None


@dataclass(frozen=True)
class TokenDelta:
    """Newly sampled tokens of one request; the last delta has a finish reason. An engine that learns only
    at the end which weights sampled what gives all `versions` of the request with the last delta."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]  # under the distribution sampled from; unscaled softmax at temperature 0
    versions: Sequence[int]  # the weights that sampled each token
    finish_reason: Literal["stop", "length", "abort"] | None = None


@dataclass
class UpdateProgress:
    """What an engine reports while it receives; the app turns it into `WeightUpdateStatus`."""

    bytes: int = 0
    transfer_s: float = 0.0
    paused_s: float = 0.0
    touched: bool = False
    cancelled: bool = field(default=False)  # set by the app: the update was called off


class InferenceEngine(abc.ABC):
    """One engine behind the contract. All coroutines run in the app's event loop.

    The app validates requests, keeps run, epoch and version, and answers over HTTP; the engine
    holds a model and moves weights. `receive_weights` is called for one update at a time, after
    validation. How requests reach an engine that has an HTTP API of its own is its own affair; the
    others are `TokenEngine`s.
    """

    @abc.abstractmethod
    def info(self) -> EngineInfo: ...

    @abc.abstractmethod
    def health(self) -> Health: ...

    @abc.abstractmethod
    def process(self) -> ProcessFigures: ...

    @abc.abstractmethod
    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Hugging Face name -> shape of every weight that an update must bring, tied ones once."""

    @abc.abstractmethod
    def tied_parameters(self) -> Mapping[str, str]:
        """Tied name -> the name under which it is sent."""

    @abc.abstractmethod
    async def start(self, version: int) -> None:
        """Load the model; what it samples before the first update is labelled `version`."""

    @abc.abstractmethod
    async def close(self) -> None: ...

    # weights

    @abc.abstractmethod
    async def join_group(self, request: InitProcessGroupRequest) -> list[int]:
        """Join; returns this server's ranks. Raises ContractError (rendezvous_timeout, ...)."""

    @abc.abstractmethod
    def leave_group(self) -> None:
        """Drop this server's end of the weight group; harmless when there is none."""

    @abc.abstractmethod
    async def receive_weights(self, request: WeightUpdateRequest, progress: UpdateProgress) -> None:
        """Receive, apply and resume generation: when it returns, the version is live on every rank.

        Raises whatever went wrong; `progress.touched` then says whether served weights changed.
        An engine with lost weights keeps its requests held until the next complete update.
        """

    @abc.abstractmethod
    async def abort_requests(self) -> None:
        """End every request in flight with finish reason `abort`."""


class TokenEngine(InferenceEngine):
    """An engine that samples tokens; the app makes the OpenAI-compatible API around it."""

    @abc.abstractmethod
    def max_context(self) -> int:
        """Longest prompt + completion, in tokens."""

    @abc.abstractmethod
    def encode_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
        """Prompt token ids of a conversation, generation prompt included. Arguments of calls in `messages`
        are objects."""

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]: ...

    @abc.abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str: ...

    @abc.abstractmethod
    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParameters
    ) -> AsyncIterator[TokenDelta]:
        """Sample one completion; closing the iterator cancels the request."""

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, "this engine does not offer /score")
