"""The inference contract: the wire models of the routes, and the interface of an engine.

An adapter implements `InferenceEngine`, and `inference_adapters.app` serves it over HTTP. A server in another
language implements the routes. This module must not import torch.
"""

import abc
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from contracts import CONTRACT_VERSION
from contracts.channel import ChannelInfo, InitWeightChannelRequest, StoredUpdate
from contracts.errors import ContractError, ErrorCode
from contracts.limits import (
    MAX_INTEGER,
    MAX_MESSAGES,
    MAX_N,
    MAX_PARAMETERS,
    MAX_RANKS,
    MAX_SEQUENCES,
    MAX_TOP_LOGPROBS,
    Count,
    DrawKeys,
    Identifier,
    KvCacheMode,
    Limits,
    ModelName,
    ParameterName,
    Port,
    Prompt,
    Seconds,
    Shape,
    StopString,
    StopStrings,
    StopTokenIds,
    Temperature,
    TemplateOptions,
    TokenIds,
)
from contracts.wire import Answer, Request

# Values of requests. Responses have plain strings, because a newer server may have more values.
ReceiveMode = Literal["paused", "staged"]
Kept = Literal["weights", "nothing"]
RequestsAsleep = Literal["hold", "abort"]
Backend = Literal["gloo", "nccl", "ipc"]
LogprobsCount = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


# --- identity ---------------------------------------------------------------------------------


class EngineInfo(Answer):
    """The properties that an engine declares. They are constant while it runs."""

    engine: str
    engine_version: str
    model: str
    ranks: int = Field(1, description="ranks this server contributes to the weight group")
    backends: list[str] = Field(description="gloo, nccl, ipc")
    nccl_version: str | None = None
    accepts_dtypes: list[str] = Field(description="dtypes it casts from, e.g. float32, bfloat16")
    kv_cache: list[str] = Field(description="keep, recompute")
    capabilities: list[str] = Field(
        description="score, score_top, staged, truncation, seed, stop_strings, tools, forced_calls, "
        "template_options, stream, top_logprobs, arrays, as_completed, openai, metrics, leave_group, "
        "relay, shared, delta, sleep, prescribed_draws, commitments. Ignore others"
    )
    end_token_ids: list[int] | None = Field(None, description="at which answers end; null: not told")


class GroupInfo(Answer):
    """The server's weight group."""

    epoch: int
    rank_offset: int
    world_size: int


class WeightsInfo(Answer):
    """The weights that the server serves."""

    version: int
    state: str = Field(
        description="live, receiving, lost, or waiting: nobody samples. Treat an unknown value as transient"
    )
    run: str | None = Field(None, description="the run that sent them; null before the first update")
    digest: str | None = Field(None, description="from the signed manifest; null: not from a store")
    oldest: int | None = Field(
        None, description="oldest version that may sample a request that begins now; null: `version`"
    )


class ProcessFigures(Answer):
    """Statistics of the engine, summed over its processes."""

    resident_bytes: int
    running: int = Field(description="requests being generated")
    waiting: int = Field(description="requests queued")


class ContractInfo(EngineInfo):
    """The response to `GET /contract`."""

    contract: int = CONTRACT_VERSION
    run: str | None
    group: GroupInfo | None
    channel: ChannelInfo | None = Field(None, description="instead of a group; needs relay or shared")
    weights: WeightsInfo
    process: ProcessFigures
    limits: Limits | None = Field(None, description="null: a server of version 1, which reports none")


class Health(Answer):
    """The response to `GET /health`: status 200 if ready, otherwise 503 with the reason.

    With `?challenge=`, a server that has a token sends `proof` and `address` (see `contracts.challenge`).
    """

    status: str = Field(description="ready, asleep, loading or unhealthy; an unknown value means not ready")
    reason: str | None = None
    proof: str | None = Field(None, description="proves that the server knows the token")
    address: str | None = Field(None, description="host:port at which this request reached the server")


# --- weights ----------------------------------------------------------------------------------


class InitProcessGroupRequest(Request):
    """The body of `POST /init_process_group`: join the weight group that the trainer hosts."""

    run: Identifier = Field(description="random id of the trainer's session, new at every trainer start")
    takeover: bool = Field(False, description="accept another run; its requests end with `abort`")
    epoch: Count = Field(description="the group's generation: grows with every rebuild within a session")
    group_name: Identifier = Field(description="store prefix; contains a one-time secret")
    backend: Backend
    master_address: Identifier
    master_port: Port
    rank_offset: int = Field(ge=1, le=MAX_RANKS)
    world_size: int = Field(ge=2, le=MAX_RANKS)
    timeout_s: Seconds
    nccl_version: Identifier | None = Field(None, description="of the trainer; compared before joining")
    probe: bool = Field(False, description="rank 0 broadcasts one byte as part of joining; version 2")


class InitProcessGroupResponse(Answer):
    """The response to `POST /init_process_group`, sent once the server's ranks have joined."""

    ranks: list[int]


class LeaveProcessGroupRequest(Request):
    """The body of `POST /leave_process_group`: leave the weight group, before the trainer does."""

    run: Identifier
    epoch: Count


class LeaveProcessGroupResponse(Answer):
    """The response to `POST /leave_process_group`: the server enters no further broadcast of the group."""

    left: bool = Field(description="false: the server was in no weight group any more")


class Parameter(Request):
    """One tensor of a weight update: its Hugging Face state-dict name, torch dtype name and shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ParameterName
    dtype: Identifier
    shape: Shape


class WeightUpdateRequest(Request):
    """The body of `POST /request_weight_update`. The server validates it before any collective."""

    run: Identifier
    epoch: Count
    version: Count = Field(description="number of optimizer steps closed; 0 = initial weights")
    parameters: list[Parameter] = Field(
        min_length=1, max_length=MAX_PARAMETERS, fail_fast=True, description="in the order of the broadcast"
    )
    tied: dict[ParameterName, ParameterName] = Field(
        default_factory=dict, max_length=MAX_PARAMETERS, description="tied name -> name that is sent"
    )
    bucket_bytes: int = Field(gt=0, lt=MAX_INTEGER)
    kv_cache: KvCacheMode = "keep"
    receive: ReceiveMode = "paused"
    timeout_s: Seconds = Field(description="longest wait for a bucket; for the first one, from the 202")


class WeightUpdateAccepted(Answer):
    """The 202 response: the request is valid, and the server joins the broadcast."""

    state: str = "receiving"


class WeightUpdateStatus(Answer):
    """The response to `GET /weight_update/{version}`: the state of that update."""

    run: str
    epoch: int
    version: int
    state: str = Field(
        "receiving",
        description="receiving, live, failed, or skipped: superseded or invalid, and not retried",
    )
    touched: bool = Field(False, description="true if a bucket was applied to the served weights")
    error: str | None = None
    paused_s: float = Field(0.0, description="seconds for which generation was paused")
    transfer_s: float = Field(0.0, description="seconds from the 202 to the last bucket")
    bytes: int = 0


class AbortWeightUpdateRequest(Request):
    """The body of `POST /abort_weight_update`: cancels an update, unless it is being applied."""

    run: Identifier
    epoch: Count
    version: Count


# --- sleep ------------------------------------------------------------------------------------


class SleepRequest(Request):
    """The body of `POST /sleep` (capability `sleep`): give the memory of the device back, for a while."""

    run: Identifier
    epoch: Count = Field(description="of the group or channel that was joined last")
    keep: Kept = Field("weights", description="nothing: the next weight update wakes the server")
    requests: RequestsAsleep = Field("hold", description="abort: those in flight end with `abort`")
    timeout_s: Seconds = Field(description="longest wait for a forward pass or a score to end")


class SleepResponse(Answer):
    """The response to `POST /sleep`, sent once the memory is free."""

    released_bytes: int = Field(description="that the device has back, measured")
    held: int = Field(description="completions in flight that wait; each choice is one")
    hold_timeout_s: float = Field(description="for how long requests wait, from this response on")
    seconds: float = Field(description="from the request until the memory was free")


class WakeRequest(Request):
    """The body of `POST /wake` (capability `sleep`): go on with the weights that were kept."""

    run: Identifier
    epoch: Count = Field(description="of the group or channel that was joined last")


class WakeResponse(Answer):
    """The response to `POST /wake`, sent once generation has resumed."""

    version: int = Field(description="version of the weights")
    seconds: float = Field(description="from the request until generation resumed")


# --- generation -------------------------------------------------------------------------------


class StreamOptions(Request):
    """The field `stream_options`. `include_usage` requests a last chunk with the usage."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False
    continuous_usage_stats: bool = Field(False, description="an engine may honour it")


class GenerationRequest(Request):
    """The fields of chat and text completions. A server refuses a field that it does not support with 422."""

    model: ModelName
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: Temperature = Field(1.0, description="0, which is greedy, or at least 0.0001")
    n: int = Field(1, ge=1, le=MAX_N)
    stream: bool = False
    stop_token_ids: StopTokenIds = Field(default_factory=list)
    top_p: float | None = Field(None, gt=0, le=1, description="needs `truncation`")
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="needs `truncation`; 0 and -1 mean all")
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**63 - MAX_N, description="needs `seed`; choice i has seed + i"
    )
    draw_keys: DrawKeys | None = Field(
        None, description="needs `prescribed_draws` and `logprobs: true`; one of each choice, by its index"
    )
    commitments: bool = Field(
        False, description="needs `commitments` and `logprobs: true`; proofs come with each choice"
    )
    stop: StopString | StopStrings | None = Field(None, description="needs `stop_strings`")
    stream_options: StreamOptions | None = Field(None, description="needs `openai`, and `stream`")
    arrays: bool = Field(False, description="needs `arrays` and `logprobs: true`; numbers come as base64")
    as_completed: bool = Field(False, description="needs `as_completed`, without `stream`; a line a choice")


class ChatCompletionRequest(GenerationRequest):
    """The body of `POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    logprobs: bool = False
    top_logprobs: LogprobsCount | None = Field(None, description="needs `logprobs`; above 0 `top_logprobs`")
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31, description="OpenAI's newer name")
    tools: list[dict[str, Any]] | None = Field(
        None, max_length=MAX_MESSAGES, fail_fast=True, description="needs `tools`"
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="auto; none: a call is text; required or a function's name need `forced_calls`"
    )
    chat_template_kwargs: TemplateOptions | None = Field(None, description="needs `template_options`")


class CompletionRequest(GenerationRequest):
    """The body of `POST /v1/completions`; `prompt` is text or token ids, or (`openai`) a list of either."""

    prompt: Prompt
    logprobs: bool | LogprobsCount | None = Field(
        None, description="true, or (`openai`) the number of most likely tokens, in the classic form"
    )


class VersionSpan(Answer):
    """Half-open span of sampled tokens that one weight version sampled."""

    version: int
    start: int
    end: int


class ScoreRequest(Request):
    """The body of `POST /score` (capability `score`): token ids for which to compute log-probabilities."""

    sequences: list[TokenIds] = Field(min_length=1, max_length=MAX_SEQUENCES, fail_fast=True)
    temperature: Temperature = Field(1.0, gt=0)
    top_logprobs: LogprobsCount = Field(0, description="of each position; above 0 needs `score_top`")


class ScoreResponse(Answer):
    """The response to `POST /score`: one log-probability fewer than the ids, in nats.

    `logprobs[i][j]` is log p(sequences[i][j+1] | sequences[i][:j+1]), and `top_token_ids[i][j]` with
    `top_logprobs[i][j]` are the likeliest ids there.
    """

    logprobs: list[list[float]]
    version: int
    top_token_ids: list[list[list[int]]] = Field([], description="if `top_logprobs` is above 0")
    top_logprobs: list[list[list[float]]] = Field([], description="if `top_logprobs` is above 0")


# --- the engine -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplingParameters:
    """The sampling parameters of one completion. `temperature` 0 means greedy."""

    max_tokens: int
    temperature: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    draw_key: bytes | None = None  # 32 bytes: `contracts.draws` says which tokens are sampled
    top_logprobs: int = 0  # the number of most likely tokens to return with each sampled token
    commitments: bool = False  # return `contracts.commitments` with the last token


@dataclass(frozen=True)
class TokenDelta:
    """Newly sampled tokens of one request. The last delta has a finish reason.

    An engine that knows the versions only at the end puts all `versions` of the request in the last delta.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]  # nats, under the distribution sampled from (temperature 0: unscaled)
    versions: Sequence[int]  # the weight version that sampled each token
    finish_reason: Literal["stop", "length", "abort"] | None = None
    # (id, log-probability) of the most likely tokens at each position, in descending order; empty by default
    top_logprobs: Sequence[Sequence[tuple[int, float]]] = ()
    commitments: bytes | None = None  # in the last delta, if the request asks for them


class Enough(Exception):  # noqa: N818 (not an error)
    """Thrown into `generate` to stop sampling and get the versions of the tokens sampled so far."""


@dataclass
class UpdateProgress:
    """Progress of a weight update. The engine writes it; the app turns it into `WeightUpdateStatus`."""

    bytes: int = 0
    transfer_s: float = 0.0
    paused_s: float = 0.0
    touched: bool = False
    cancelled: bool = field(default=False)  # set by the app when the update is cancelled


class InferenceEngine(abc.ABC):
    """Base class of inference engines. All coroutines run in the app's event loop.

    The app validates requests, tracks run, epoch and version, and serves HTTP. The engine runs the model and
    receives weights, one update at a time. An engine that has an HTTP API of its own serves generation
    requests itself; every other engine is a `TokenEngine`.
    """

    @abc.abstractmethod
    def info(self) -> EngineInfo:
        """Returns the engine's constant properties."""

    @abc.abstractmethod
    def health(self) -> Health:
        """Returns the engine's health. The app calls it after `start` has returned."""

    @abc.abstractmethod
    def process(self) -> ProcessFigures:
        """Returns the memory of the engine's processes, and its numbers of running and waiting requests."""

    async def metrics(self) -> str:
        """Returns further metrics in Prometheus' text format, which `/metrics` appends to the contract's."""
        return ""

    @abc.abstractmethod
    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the shape of every weight of an update by Hugging Face name. Tied weights occur once."""

    @abc.abstractmethod
    def tied_parameters(self) -> Mapping[str, str]:
        """Returns, for each tied name, the name under which its weight is sent."""

    @abc.abstractmethod
    async def start(self, version: int) -> None:
        """Loads the model. `version` is the version of its weights until the first update."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Stops the engine and frees its resources."""

    # --- weights

    @abc.abstractmethod
    async def join_group(self, request: InitProcessGroupRequest) -> list[int]:
        """Joins the weight group and returns this server's ranks.

        Raises ContractError, e.g. `rendezvous_timeout`.
        """

    @abc.abstractmethod
    def leave_group(self) -> None:
        """Begins to leave the weight group, without waiting. Does nothing if there is no group."""

    @abc.abstractmethod
    async def receive_weights(self, request: WeightUpdateRequest, progress: UpdateProgress) -> None:
        """Receives and applies an update, then resumes generation.

        On return, the version is live on every rank. If it raises, `progress.touched` is True if served
        weights changed. Then the weights are lost, and requests wait until the next complete update.
        """

    def channel_joined(self, request: InitWeightChannelRequest) -> None:  # noqa: B027
        """Called when the server has joined a weight channel, before the first version is pulled."""

    def weights_info(self, known: WeightsInfo) -> WeightsInfo:
        """Returns what `/contract` says about the weights. known: what the app knows about them."""
        return known

    async def load_weights(self, update: StoredUpdate, progress: UpdateProgress) -> None:
        """Applies a version from local files, then resumes generation. Needs `relay` or `shared`.

        Returns and raises as `receive_weights` does. The files are verified. The engine must not write to
        them, nor read them after returning, because the caller may delete them.
        """
        raise ContractError(ErrorCode.UNSUPPORTED_CHANNEL, "this engine does not load stored weights")

    @abc.abstractmethod
    async def abort_requests(self) -> None:
        """Ends every request in flight with finish reason `abort`."""

    async def sleep(self, request: SleepRequest) -> int:
        """Pauses generation and frees memory. Returns the freed bytes of the device. Needs `sleep`.

        Keys and values are given up, and weights unless `request.keep` says so. Requests in flight stay. The
        engine wakes by `wake`, and in every `receive_weights` or `load_weights` that succeeds. Raises
        ContractError (`sleep_timeout`) if generation and scores do not stop in `request.timeout_s`. If it
        raises, the engine is awake, or its health is unhealthy.
        """
        raise ContractError(ErrorCode.UNSUPPORTED_SLEEP, "this server does not sleep")

    async def wake(self) -> None:
        """Allocates memory again, and resumes generation with the weights that `sleep` kept.

        Requests in flight compute their keys and values anew. If it raises, the engine is still asleep.
        """
        raise ContractError(ErrorCode.UNSUPPORTED_SLEEP, "this server does not sleep")


class TokenEngine(InferenceEngine):
    """Base class of engines that take and return token ids. The app adds the OpenAI-compatible API."""

    @abc.abstractmethod
    def max_context(self) -> int:
        """Returns the maximum number of tokens of a prompt and its completion together."""

    @abc.abstractmethod
    def encode_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
        """Returns the prompt token ids of a conversation, including the generation prompt.

        The arguments of tool calls in `messages` are objects, not JSON strings. An engine with the capability
        `template_options` is given those of a request, if it has any, as a third argument.
        """

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text prompt."""

    @abc.abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""

    @abc.abstractmethod
    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        """Samples one completion and yields its tokens. Closing the generator cancels the request.

        An engine that knows the versions only at the end catches `Enough`, and yields a last delta with them.
        Raises ContractError, before the first token, for a request that the engine refuses.
        """

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        """Returns log-probabilities of the given token ids. Raises ContractError if it is not supported."""
        raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, "this engine does not offer /score")
