"""The error codes of the inference contract: `{"error": {"code": ..., "message": ...}}`."""

from enum import Enum
from typing import Any


class ErrorCode(Enum):
    """Every code a server may answer with, and its HTTP status."""

    def __init__(self, code: str, http_status: int):
        self.code = code
        self.http_status = http_status

    UNAUTHORIZED = ("unauthorized", 401)  # the bearer token is missing or wrong
    NOT_FOUND = ("not_found", 404)  # no such route, model or weight update
    OTHER_RUN = ("other_run", 409)  # the server belongs to another run; `takeover` was not asked
    NO_GROUP = ("no_group", 409)  # no weight group has been joined
    JOINING = ("joining", 409)  # the weight group is still being joined
    STALE_EPOCH = ("stale_epoch", 409)  # the epoch is not newer (join) or not the current one (update)
    STALE_VERSION = ("stale_version", 409)  # lower than the live version
    UPDATE_IN_PROGRESS = ("update_in_progress", 409)  # another weight update is under way
    INVALID_REQUEST = ("invalid_request", 422)  # a field is missing or has a wrong type or value
    UNKNOWN_PARAMETER = ("unknown_parameter", 422)  # a weight that the model does not have
    MISSING_PARAMETER = ("missing_parameter", 422)  # a weight of the model that is not sent
    SHAPE_MISMATCH = ("shape_mismatch", 422)  # a weight whose shape is not the model's
    DTYPE_MISMATCH = ("dtype_mismatch", 422)  # a dtype that the server does not accept
    UNSUPPORTED_KV_CACHE = ("unsupported_kv_cache", 422)  # `kv_cache` mode not in `/contract`
    UNSUPPORTED_RECEIVE = ("unsupported_receive", 422)  # `receive: staged` without the capability
    UNSUPPORTED_BACKEND = ("unsupported_backend", 422)  # collective backend not in `/contract`
    NCCL_MISMATCH = ("nccl_mismatch", 422)  # the two ends run different NCCL versions
    UNSUPPORTED_PARAMETER = ("unsupported_parameter", 422)  # a sampling parameter not honoured here
    CONTEXT_LENGTH = ("context_length_exceeded", 422)  # prompt + max_tokens exceed the model's context
    ENGINE_FAILED = ("engine_failed", 500)  # the engine raised an error of its own: see the server's log
    UNHEALTHY = ("unhealthy", 503)  # loading, or weights were lost
    WEIGHTS_LOST = ("weights_lost", 503)  # a request was held for weights that did not come
    RENDEZVOUS_TIMEOUT = ("rendezvous_timeout", 504)  # the weight group did not form in time


class ContractError(Exception):
    """An answer that the contract defines as a refusal; the app turns it into its HTTP response."""

    def __init__(self, code: ErrorCode, message: str):
        super().__init__(message)
        self.code = code
        self.message = message

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code.code, "message": self.message}}
