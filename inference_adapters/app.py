"""The HTTP app of any `InferenceEngine`: routes, token, errors, startup and shutdown. `serve` creates it.

This module must not depend on a particular engine, and makes no decisions about weights.
"""

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable, Sequence

from fastapi import FastAPI
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from contracts.errors import ContractError, ErrorCode
from inference_adapters.body_limits import BodyLimits
from inference_adapters.control_routes import control_routes, health_routes
from inference_adapters.error_answers import add_error_answers, error_answer
from inference_adapters.generation_routes import generation_routes
from inference_adapters.metrics_route import metrics_routes
from inference_adapters.model_routes import ModelNames, model_routes
from inference_adapters.request_counts import CountRequests
from inference_adapters.weight_updates import WeightUpdates

AddGeneration = Callable[[FastAPI, WeightUpdates], None]


def create_app(
    updates: WeightUpdates,
    token: str | None = None,
    version: int = 0,
    on_start_failure: Callable[[BaseException], None] | None = None,
    add_generation: AddGeneration | None = None,
    served_names: Sequence[str] = (),
) -> FastAPI:
    """Returns the HTTP app of the engine of `updates`.

    version: version of the engine's initial weights.
    on_start_failure: called if loading the model fails. `/health` reports `loading` until it has loaded.
    add_generation: adds the OpenAI-compatible routes of an engine that is not a `TokenEngine`.
    served_names: additional names of a `TokenEngine`'s model.
    """
    engine = updates.engine

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
        try:
            await updates.membership.close()
        finally:
            await engine.close()

    app = FastAPI(title="inference contract", lifespan=lifespan, redirect_slashes=False)
    app.state.end_requests = updates.end_requests  # called before the server closes connections
    names = ModelNames(engine, served_names)
    if add_generation is None:  # first, because routes are matched in order and most requests are for these
        app.include_router(generation_routes(engine, updates, names))
    app.include_router(health_routes(updates, token))
    app.include_router(control_routes(updates))
    app.include_router(metrics_routes(updates))
    if add_generation is None:
        app.include_router(model_routes(updates, names.cards))
    else:
        add_generation(app, updates)
    add_error_answers(app)
    app.add_middleware(RouteMethods, routes=app.routes)
    app.add_middleware(BodyLimits, limits=updates.limits)
    if token:
        app.add_middleware(BearerToken, token=token)
    app.add_middleware(CountRequests, totals=updates.totals)
    return app


class RouteMethods:
    """Middleware that refuses a wrong method on a route, even if an adapter mounts an app at `/`."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]):
        self.app = app
        self.routes = [route for route in routes if not isinstance(route, Mount)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_for_another_method(scope):
            why = f"{scope['method']} {scope['path']}: the route is for another method"
            error = ContractError(ErrorCode.METHOD_NOT_ALLOWED, why)
            await error_answer(error, scope["path"])(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _is_for_another_method(self, scope: Scope) -> bool:
        found = False
        for route in self.routes:
            match, _ = route.matches(scope)
            if match is Match.FULL:
                return False
            found = found or match is Match.PARTIAL
        return found


class BearerToken:
    """Middleware that requires `Authorization: Bearer <token>` on every route except `/health`."""

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
            await error_answer(error, scope["path"])(scope, receive, send)
