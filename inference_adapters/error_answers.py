"""Converts every error of a server to an HTTP response of the contract."""

import json

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from contracts.errors import ContractError, ErrorCode
from inference_adapters.neutral_values import accepted_values

LONGEST_MESSAGE = 1000  # characters; a message may contain a field's name, which the client chooses


def add_error_answers(app: FastAPI) -> None:
    app.add_exception_handler(ContractError, _contract_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _failure)


def error_answer(error: ContractError, path: str, headers: dict[str, str] | None = None) -> Response:
    return Response(error_body(error), error.code.status_at(path), headers, "application/json")


def error_body(error: ContractError) -> bytes:
    """Returns the JSON of an error, in ASCII because a message may quote half of a surrogate pair."""
    param = error.param and error.param[:LONGEST_MESSAGE]
    return json.dumps(ContractError(error.code, error.message[:LONGEST_MESSAGE], param).body()).encode()


async def _contract_error(request: Request, error: ContractError) -> Response:
    return error_answer(error, request.url.path)


# The code of a value that no server supports is that of a value which this server does not support.
UNSUPPORTED_VALUE = {
    "backend": ErrorCode.UNSUPPORTED_BACKEND,
    "kind": ErrorCode.UNSUPPORTED_CHANNEL,
    "kv_cache": ErrorCode.UNSUPPORTED_KV_CACHE,
    "receive": ErrorCode.UNSUPPORTED_RECEIVE,
}


async def _validation_error(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    within = [str(part) for part in first["loc"] if part != "body"]
    where = ".".join(within)
    code = ErrorCode.INVALID_REQUEST
    why = first["msg"]
    if first["type"] == "literal_error":
        code = UNSUPPORTED_VALUE.get(where, code)
    elif first["type"] == "extra_forbidden" and request.url.path.startswith("/v1/"):
        code = ErrorCode.UNSUPPORTED_PARAMETER
        why = accepted_values(where) or why
    elif first["type"] == "missing" and not where:
        code = ErrorCode.BAD_REQUEST
    where = where or "the body (sent as application/json?)"
    param = within[0] if within else None  # deeper elements may be pydantic's names of types
    return error_answer(ContractError(code, f"{where}: {why}", param), request.url.path)


async def _http_error(request: Request, error: HTTPException) -> Response:
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        why = ContractError(ErrorCode.METHOD_NOT_ALLOWED, f"{asked}: the route is for another method")
    elif error.status_code == 400:
        why = ContractError(ErrorCode.BAD_REQUEST, str(error.detail))
    else:
        why = ContractError(ErrorCode.NOT_FOUND, f"no route {asked}")
    return error_answer(why, request.url.path, dict(error.headers or {}))


async def _failure(request: Request, error: Exception) -> Response:
    """Returns the response to an unexpected error, whose traceback is in the server's log."""
    why = ContractError(ErrorCode.ENGINE_FAILED, f"{type(error).__name__}; see the server's log")
    return error_answer(why, request.url.path)
