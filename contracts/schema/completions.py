"""Models of OpenAI's responses, with the fields that the contract adds, for the OpenAPI file.

Servers build their responses without these models.
"""

from typing import Any

from pydantic import Field

from contracts.inference import VersionSpan
from contracts.limits import TokenIds
from contracts.wire import Answer

IDS = "with `logprobs`, unless `arrays`; "
INT32 = "with `arrays`; base64 of little-endian int32, "
FLOAT32 = "with `arrays`; base64 of little-endian float32, nats"


class TokenLogprob(Answer):
    """One sampled token."""

    token: str | None = None
    bytes: list[int] | None = Field(None, description="null for a part of a character")
    logprob: float = Field(le=1e-3, description="nats, under the distribution that it was sampled from")
    top_logprobs: list[dict[str, Any]] | None = None


class Logprobs(Answer):
    """The log-probabilities of a choice or a delta. OpenAI's classic form has no `content`."""

    content: list[TokenLogprob] | None = None


class Commitments(Answer):
    """Proofs of what the output head read for each token of a choice."""

    format: str = Field(description="toploc-1")
    proofs: str = Field(description="base64 of the proofs of its chunks")


class AnyChoice(Answer):
    """Base class of choices."""

    index: int = Field(ge=0)
    finish_reason: str | None = Field(description="stop, length, tool_calls or abort; null before the end")
    token_ids: TokenIds | None = Field(None, description=IDS + "ids of this choice or delta")
    token_ids_base64: str | None = Field(None, description=INT32 + "ids of this choice or delta")
    prompt_token_ids: TokenIds | None = Field(None, description="if the request has several prompts")
    prompt_token_ids_base64: str | None = Field(None, description="the same, with `arrays`")
    logprobs: Logprobs | None = None
    logprobs_base64: str | None = Field(None, description=FLOAT32)
    weight_versions: list[VersionSpan] | None = Field(None, description="in a stream, in the last delta")
    commitments: Commitments | None = Field(None, description="if requested; in a stream, in the last delta")


class Message(Answer):
    """A message of a chat, or its delta."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(AnyChoice):
    """A choice of a chat completion."""

    message: Message


class ChatDelta(AnyChoice):
    """A choice in a chunk of a chat completion."""

    delta: Message


class TextChoice(AnyChoice):
    """A choice of a text completion, or of a chunk of one."""

    text: str


class Usage(Answer):
    """The token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnyCompletion(Answer):
    """Base class of responses and chunks."""

    id: str
    object: str
    created: int
    model: str
    prompt_token_ids: TokenIds | None = Field(None, description=IDS + "in a stream, in the first chunk")
    prompt_token_ids_base64: str | None = Field(None, description=INT32 + "in place of the ids")
    usage: Usage | None = None


class ChatCompletion(AnyCompletion):
    """The response to `POST /v1/chat/completions`."""

    choices: list[ChatChoice]


class ChatCompletionChunk(AnyCompletion):
    """One event of a streamed chat completion."""

    choices: list[ChatDelta]


class TextCompletion(AnyCompletion):
    """The response to `POST /v1/completions`, or one event of a streamed one."""

    choices: list[TextChoice]


class Model(Answer):
    """A model of the server."""

    id: str
    object: str
    created: int
    owned_by: str


class Models(Answer):
    """The response to `GET /v1/models`."""

    object: str
    data: list[Model] = Field(min_length=1)


class Version(Answer):
    """The response to `GET /version`."""

    version: str = Field(description="of the engine")
    engine: str


class ErrorObject(Answer):
    """The description of an error."""

    code: str = Field(description="a code of the contract, for programs")
    message: str = Field(description="for people")
    type: str | None = Field(None, description="OpenAI's: invalid_request_error or server_error")
    param: str | None = Field(None, description="the invalid field of the request")


class Error(Answer):
    """The body of every error."""

    error: ErrorObject
