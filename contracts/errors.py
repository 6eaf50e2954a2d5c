"""The error codes of the inference contract: `{"error": {"code", "message", "type", "param"}}`."""

from enum import Enum
from typing import Any

OPENAI_ROUTES = "/v1/"


class ErrorCode(Enum):
    """The error codes that a server may respond with, each with its HTTP status."""

    def __init__(self, code: str, http_status: int):
        self.code = code
        self.http_status = http_status

    @property
    def type(self) -> str:
        """OpenAI's error type: `invalid_request_error` (4xx) or `server_error` (5xx)."""
        return "server_error" if self.http_status >= 500 else "invalid_request_error"

    def status_at(self, path: str) -> int:
        """Returns the HTTP status of the error on a route. OpenAI's routes use 400 instead of 422."""
        return 400 if self.http_status == 422 and path.startswith(OPENAI_ROUTES) else self.http_status

    BAD_REQUEST = ("bad_request", 400)  # invalid HTTP, or a body that is not JSON or did not arrive in time
    UNAUTHORIZED = ("unauthorized", 401)  # the bearer token is missing or wrong
    NOT_FOUND = ("not_found", 404)  # no such route, model or weight update
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405)  # the route exists for another method
    OTHER_RUN = ("other_run", 409)  # the server belongs to another run, and `takeover` is not set
    NO_GROUP = ("no_group", 409)  # no weight group has been joined
    NO_CHANNEL = ("no_channel", 409)  # no weight channel has been joined
    JOINING = ("joining", 409)  # the weight group or channel is still being joined
    STALE_EPOCH = ("stale_epoch", 409)  # the epoch is not newer (join) or not the current one (update)
    STALE_VERSION = ("stale_version", 409)  # the version is lower than the live one
    UPDATE_IN_PROGRESS = ("update_in_progress", 409)  # another weight update, sleep or wake is under way
    WEIGHTS_DROPPED = ("weights_dropped", 409)  # `/wake` after `keep: nothing`: only an update wakes
    TOO_LARGE = ("too_large", 413)  # the body exceeds the limit that `/contract` states
    INVALID_REQUEST = ("invalid_request", 422)  # a field is missing or has a wrong type or value
    UNKNOWN_PARAMETER = ("unknown_parameter", 422)  # a weight that the model does not have
    MISSING_PARAMETER = ("missing_parameter", 422)  # a weight of the model that is not sent
    SHAPE_MISMATCH = ("shape_mismatch", 422)  # a weight whose shape is not the model's
    DTYPE_MISMATCH = ("dtype_mismatch", 422)  # a dtype that the server does not accept
    UNSUPPORTED_KV_CACHE = ("unsupported_kv_cache", 422)  # a `kv_cache` mode that is not declared
    UNSUPPORTED_RECEIVE = ("unsupported_receive", 422)  # `receive: staged`, which is not declared
    UNSUPPORTED_BACKEND = ("unsupported_backend", 422)  # a collective backend that is not declared
    NCCL_MISMATCH = ("nccl_mismatch", 422)  # server and trainer run different NCCL versions
    UNSUPPORTED_CHANNEL = ("unsupported_channel", 422)  # a kind of weight channel that is not declared
    SOURCE_REFUSED = ("source_refused", 422)  # a source outside the server's own list
    NOT_SHARED = ("not_shared", 422)  # a shared store that the server does not see
    BAD_KEY = ("bad_key", 422)  # a public key that is no Ed25519 key
    UNSUPPORTED_SLEEP = ("unsupported_sleep", 422)  # `/sleep` or `/wake`, which is not declared
    UNSUPPORTED_PARAMETER = ("unsupported_parameter", 422)  # a sampling parameter that is not honoured
    CONTEXT_LENGTH = ("context_length_exceeded", 422)  # prompt + max_tokens exceed the model's context
    ENGINE_FAILED = ("engine_failed", 500)  # the engine raised an error that the server's log explains
    OVERLOADED = ("overloaded", 503)  # more connections or completions than the server accepts
    NO_SOURCE = ("no_source", 502)  # no source of the weight channel answered
    UNHEALTHY = ("unhealthy", 503)  # the model is loading, or weights were lost
    WEIGHTS_LOST = ("weights_lost", 503)  # a request waited for weights that did not arrive
    ASLEEP = ("asleep", 503)  # a request waited for a server that did not wake
    SLEEP_TIMEOUT = ("sleep_timeout", 504)  # the server could not stop in time, and is awake
    RENDEZVOUS_TIMEOUT = ("rendezvous_timeout", 504)  # the weight group did not form in time


class CannotContinueError(Exception):
    """Raised if a process of a run cannot work with this configuration, so that a restart would not help."""


class ContractError(Exception):
    """An error with a code of the contract. The app turns it into an HTTP response.

    `param` names the invalid field of the request; None if the error is not about one field.
    """

    def __init__(self, code: ErrorCode, message: str, param: str | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        error = {"code": self.code.code, "message": self.message, "type": self.code.type, "param": self.param}
        return {"error": error}
