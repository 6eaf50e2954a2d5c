"""The HTTP server around any `InferenceEngine`: routes, token, errors, start and end.

It is called by `serve`. It knows no engine and decides nothing about weights.
"""

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from contracts.errors import ContractError, ErrorCode
from contracts.inference import InferenceEngine
from inference_adapters.control_routes import control_routes, health_routes
from inference_adapters.generation_routes import generation_routes
from inference_adapters.weight_updates import WeightUpdates

AddGeneration = Callable[[FastAPI, WeightUpdates], None]


def create_app(
    engine: InferenceEngine,
    token: str | None = None,
    version: int = 0,
    hold_timeout_s: float = 120.0,
    on_start_failure: Callable[[BaseException], None] | None = None,
    add_generation: AddGeneration | None = None,
) -> FastAPI:
    """Returns the HTTP app around `engine`.

    version: the label of the weights that the engine starts with.
    hold_timeout_s: requests in flight whose weights were lost end after this time.
    on_start_failure: called if the model does not load. It loads while `/health` reports `loading`.
    add_generation: adds the OpenAI-compatible routes for an engine that is no `TokenEngine`.
    """
    updates = WeightUpdates(engine, hold_timeout_s)

    def started(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            if on_start_failure is None:
                raise error
            on_start_failure(error)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        start = asyncio.create_task(updates.start(version))
        start.add_done_callback(started)
        yield
        start.cancel()
        await engine.close()

    app = FastAPI(title="inference contract", lifespan=lifespan)
    app.state.end_requests = updates.end_requests  # before the server closes their connections
    app.include_router(health_routes(updates, token))
    app.include_router(control_routes(updates))
    if add_generation:
        add_generation(app, updates)
    else:
        app.include_router(generation_routes(engine, updates))
    app.add_exception_handler(ContractError, _contract_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    if token:
        app.add_middleware(BearerToken, token=token)
    return app


class BearerToken:
    """Middleware that requires `Authorization: Bearer <token>` on every route but `/health`."""

    def __init__(self, app: ASGIApp, token: str):
        self.app = app
        self.expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = scope["type"] == "lifespan" or scope["path"] == "/health"
        if not allowed:
            given = dict(scope["headers"]).get(b"authorization", b"")
            allowed = hmac.compare_digest(given, self.expected)
        if allowed:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        else:
            error = ContractError(ErrorCode.UNAUTHORIZED, "the bearer token is missing or wrong")
            await _answer(error)(scope, receive, send)


def _answer(error: ContractError) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.code.http_status)


async def _contract_error(request: Request, error: ContractError) -> JSONResponse:
    return _answer(error)


# A value that no server offers is refused as one that this server does not offer.
UNSUPPORTED_VALUE = {
    "backend": ErrorCode.UNSUPPORTED_BACKEND,
    "kv_cache": ErrorCode.UNSUPPORTED_KV_CACHE,
    "receive": ErrorCode.UNSUPPORTED_RECEIVE,
}


async def _validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    code = ErrorCode.INVALID_REQUEST
    if first["type"] == "literal_error":
        code = UNSUPPORTED_VALUE.get(where, code)
    elif first["type"] == "extra_forbidden" and request.url.path.startswith("/v1/"):
        code = ErrorCode.UNSUPPORTED_PARAMETER
    where = where or "the body (sent as application/json?)"
    return _answer(ContractError(code, f"{where}: {first['msg']}"))


async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    return _answer(ContractError(ErrorCode.NOT_FOUND, f"no route {request.method} {request.url.path}"))
