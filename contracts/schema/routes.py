"""The routes of the inference contract: the request, the response and the errors of each.

The OpenAPI file is generated from this table. The conformance kit and the tests request its routes.
"""

from dataclasses import dataclass, field
from typing import Any

from contracts import channel, inference
from contracts.challenge import CHALLENGE_PATTERN
from contracts.errors import ErrorCode
from contracts.limits import LONGEST_S, MAX_INTEGER
from contracts.schema import completions
from contracts.wire import Answer, Request

ANY = (ErrorCode.BAD_REQUEST, ErrorCode.UNAUTHORIZED, ErrorCode.METHOD_NOT_ALLOWED, ErrorCode.OVERLOADED)
BODY = (ErrorCode.TOO_LARGE, ErrorCode.INVALID_REQUEST)
WEIGHTS = (
    ErrorCode.UNKNOWN_PARAMETER,
    ErrorCode.MISSING_PARAMETER,
    ErrorCode.SHAPE_MISMATCH,
    ErrorCode.DTYPE_MISMATCH,
    ErrorCode.UNSUPPORTED_KV_CACHE,
    ErrorCode.UNSUPPORTED_RECEIVE,
)
STATE = (ErrorCode.NO_GROUP, ErrorCode.NO_CHANNEL, ErrorCode.JOINING, ErrorCode.STALE_VERSION)
JOINING = (ErrorCode.UNSUPPORTED_BACKEND, ErrorCode.NCCL_MISMATCH, ErrorCode.RENDEZVOUS_TIMEOUT)
CHANNEL = (
    ErrorCode.UNSUPPORTED_CHANNEL,
    ErrorCode.UNSUPPORTED_KV_CACHE,
    ErrorCode.SOURCE_REFUSED,
    ErrorCode.NOT_SHARED,
    ErrorCode.BAD_KEY,
    ErrorCode.NO_SOURCE,
    ErrorCode.ENGINE_FAILED,
)
BOTH = (ErrorCode.OTHER_RUN, ErrorCode.STALE_EPOCH, ErrorCode.UPDATE_IN_PROGRESS, ErrorCode.UNHEALTHY)
SLEEP = (*BOTH, ErrorCode.NO_GROUP, ErrorCode.JOINING, ErrorCode.UNSUPPORTED_SLEEP, ErrorCode.ENGINE_FAILED)
GENERATION = (
    ErrorCode.NOT_FOUND,
    ErrorCode.UNSUPPORTED_PARAMETER,
    ErrorCode.CONTEXT_LENGTH,
    ErrorCode.ENGINE_FAILED,
    ErrorCode.UNHEALTHY,
    ErrorCode.WEIGHTS_LOST,
    ErrorCode.ASLEEP,
)


SAMPLES = {"integer": "1", "string": "x"}  # the value of a path parameter, by its type


@dataclass(frozen=True)
class Route:
    """One route of the contract.

    chunk: model of one event, if the response can be a stream.
    other_request: a second form of the body.
    body_limit: field of `Limits` with the maximum size of the body.
    capabilities: a server has the route if it declares one of these. If empty, every server has it.
    """

    method: str
    path: str
    summary: str
    answer: type[Answer] | None  # None: plain text
    request: type[Request] | None = None
    other_request: type[Request] | None = None
    status: int = 200
    chunk: type[Answer] | None = None
    errors: tuple[ErrorCode, ...] = ()
    parameters: list[dict[str, Any]] = field(default_factory=list)
    body_limit: str = "max_generation_bytes"
    capabilities: tuple[str, ...] = ()

    @property
    def sample(self) -> tuple[str, str]:
        """The method in capitals, and the path with a valid value for each of its parameters."""
        values = {p["name"]: SAMPLES[p["schema"]["type"]] for p in self.parameters if p["in"] == "path"}
        return self.method.upper(), self.path.format(**values)


def _parameter(name: str, where: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


CHALLENGE = _parameter("challenge", "query", {"type": "string", "pattern": CHALLENGE_PATTERN})
VERSION = _parameter("version", "path", {"type": "integer", "minimum": 0, "exclusiveMaximum": MAX_INTEGER})
MODEL = _parameter("model", "path", {"type": "string"})
WAIT = {"type": "number", "minimum": 0, "exclusiveMaximum": LONGEST_S, "default": 0}

ROUTES = [
    Route("get", "/health", "The server's health", inference.Health, parameters=[CHALLENGE]),
    Route("head", "/health", "The same, without a body", inference.Health, capabilities=("openai",)),
    Route("get", "/version", "The engine's version", completions.Version, capabilities=("openai",)),
    Route(
        "get", "/contract", "The server's properties and weights", inference.ContractInfo, errors=BOTH[-1:]
    ),
    Route(
        "get",
        "/metrics",
        "Metrics in Prometheus' text format",
        None,
        errors=(ErrorCode.UNHEALTHY,),
        capabilities=("metrics",),
    ),
    Route(
        "post",
        "/init_process_group",
        "Join a weight group; the response is sent when all ranks have joined",
        inference.InitProcessGroupResponse,
        inference.InitProcessGroupRequest,
        errors=BODY + JOINING + BOTH,
    ),
    Route(
        "post",
        "/leave_process_group",
        "Leave the weight group; an update that is being received is cancelled first",
        inference.LeaveProcessGroupResponse,
        inference.LeaveProcessGroupRequest,
        errors=(*BODY, ErrorCode.JOINING, ErrorCode.OTHER_RUN, ErrorCode.STALE_EPOCH, ErrorCode.UNHEALTHY),
        capabilities=("leave_group",),
    ),
    Route(
        "post",
        "/init_weight_channel",
        "Join a weight channel",
        channel.InitWeightChannelResponse,
        channel.InitWeightChannelRequest,
        errors=BODY + CHANNEL + BOTH,
        capabilities=("relay", "shared"),
    ),
    Route(
        "post",
        "/request_weight_update",
        "Receive new weights, over the group or the channel",
        inference.WeightUpdateAccepted,
        inference.WeightUpdateRequest,
        channel.ChannelUpdateRequest,
        status=202,
        errors=BODY + WEIGHTS + STATE + BOTH,
        body_limit="max_body_bytes",
    ),
    Route(
        "get",
        "/weight_update/{version}",
        "The state of an update",
        inference.WeightUpdateStatus,
        parameters=[VERSION, _parameter("wait_s", "query", WAIT)],
        errors=(ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST, ErrorCode.UNHEALTHY),
    ),
    Route(
        "post",
        "/abort_weight_update",
        "Cancel an update before its first bucket is sent",
        inference.WeightUpdateStatus,
        inference.AbortWeightUpdateRequest,
        errors=(*BODY, ErrorCode.NOT_FOUND, ErrorCode.OTHER_RUN, ErrorCode.UNHEALTHY),
    ),
    Route(
        "post",
        "/sleep",
        "Give memory back; requests in flight are held",
        inference.SleepResponse,
        inference.SleepRequest,
        errors=(*BODY, *SLEEP, ErrorCode.SLEEP_TIMEOUT),
        capabilities=("sleep",),
    ),
    Route(
        "post",
        "/wake",
        "Generate again with the weights that were kept",
        inference.WakeResponse,
        inference.WakeRequest,
        errors=(*BODY, *SLEEP, ErrorCode.WEIGHTS_DROPPED),
        capabilities=("sleep",),
    ),
    Route(
        "post",
        "/v1/chat/completions",
        "Complete a conversation",
        completions.ChatCompletion,
        inference.ChatCompletionRequest,
        chunk=completions.ChatCompletionChunk,
        errors=BODY + GENERATION,
    ),
    Route(
        "post",
        "/v1/completions",
        "Complete text or token ids",
        completions.TextCompletion,
        inference.CompletionRequest,
        chunk=completions.TextCompletion,
        errors=BODY + GENERATION,
    ),
    Route("get", "/v1/models", "The models", completions.Models, errors=(ErrorCode.UNHEALTHY,)),
    Route(
        "get",
        "/v1/models/{model}",
        "One model",
        completions.Model,
        parameters=[MODEL],
        errors=(ErrorCode.NOT_FOUND, ErrorCode.UNHEALTHY),
        capabilities=("openai",),
    ),
    Route(
        "post",
        "/score",
        "Log-probabilities of given token ids",
        inference.ScoreResponse,
        inference.ScoreRequest,
        errors=BODY + GENERATION[1:],
        body_limit="max_body_bytes",
        capabilities=("score",),
    ),
]
EVERYWHERE = [route for route in ROUTES if not route.capabilities]  # routes of every server
