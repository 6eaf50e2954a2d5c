"""Maps vLLM's errors to the contract's codes, and refuses fields that vLLM would ignore."""

import json
from typing import TypeVar

from pydantic import ValidationError
from vllm.entrypoints.serve.engine.protocol import ErrorResponse, OpenAIBaseModel
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

from contracts.errors import ContractError, ErrorCode
from inference_adapters.neutral_values import accepted_values, without_neutral

Request = TypeVar("Request", bound=OpenAIBaseModel)

NOT_SAMPLED = ("use_beam_search",)  # parameters with which tokens are not sampled
BY_STATUS = {
    404: ErrorCode.NOT_FOUND,
    500: ErrorCode.ENGINE_FAILED,
    501: ErrorCode.UNSUPPORTED_PARAMETER,
    503: ErrorCode.UNHEALTHY,
}


def parsed(body: dict, form: type[Request]) -> Request:
    """Returns the parsed body. Raises ContractError if it is invalid, or has a field that vLLM ignores."""
    known = form.model_fields.keys() | {field.alias for field in form.model_fields.values()}
    for name in [*sorted(body.keys() - known), *(name for name in NOT_SAMPLED if body.get(name))]:
        raise ContractError(
            ErrorCode.UNSUPPORTED_PARAMETER,
            f"{name}: {accepted_values(name) or 'this server does not honour it'}",
            name,
        )
    try:
        return form.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        within = [str(part) for part in first["loc"]]
        param = within[0] if within else None
        raise ContractError(
            ErrorCode.INVALID_REQUEST, f"{'.'.join(within)}: {first['msg']}", param
        ) from error
    except Exception as error:  # vLLM's validators fail on values of another type
        why = refusal(error)
        if why.code is ErrorCode.ENGINE_FAILED:
            why = ContractError(ErrorCode.INVALID_REQUEST, f"the body cannot be read: {error!r}")
        raise why from error


def json_object(raw: bytes) -> dict:
    """Parses the body and removes neutral fields. Raises ContractError if it is not a JSON object."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ContractError(ErrorCode.BAD_REQUEST, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ContractError(ErrorCode.INVALID_REQUEST, "the body is not a JSON object")
    return without_neutral(body)


def refusal(error: Exception | ErrorResponse) -> ContractError:
    """Converts an exception or error response of vLLM to a ContractError."""
    if isinstance(error, ContractError):
        return error
    if isinstance(error, RecursionError):
        return ContractError(ErrorCode.INVALID_REQUEST, "the body is nested too deeply")
    response = error if isinstance(error, ErrorResponse) else create_error_response(error)
    message = response.error.message
    code = BY_STATUS.get(response.error.code, ErrorCode.INVALID_REQUEST)
    if code is ErrorCode.INVALID_REQUEST and ("context length" in message or "max_model_len" in message):
        code = ErrorCode.CONTEXT_LENGTH
    return ContractError(code, message, response.error.param)
