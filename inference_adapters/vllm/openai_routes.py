"""vLLM's OpenAI API, with the contract's fields added to the responses of vLLM's serving layer.

Parameters that vLLM supports are accepted; unknown ones are refused. vLLM's app serves all other routes,
without the contract's fields.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from contracts.errors import ContractError, ErrorCode
from inference_adapters.completion_slots import CompletionSlots
from inference_adapters.model_routes import model_routes
from inference_adapters.score_route import add_score_route
from inference_adapters.streaming import EventStream, until_disconnect
from inference_adapters.vllm.engine import VllmEngine
from inference_adapters.vllm.engine_client import CurrentRequest, current_request
from inference_adapters.vllm.errors import json_object, parsed, refusal
from inference_adapters.vllm.other_routes import OtherRoutes
from inference_adapters.vllm.request_checks import checked_chat, checked_text
from inference_adapters.vllm.responses import (
    event,
    event_body,
    with_ends,
    with_likeliest,
    with_possible,
    with_text_fields,
    with_usage,
)
from inference_adapters.vllm.tools import check_tools
from inference_adapters.weight_updates import WeightUpdates

Finish = Callable[[dict, CurrentRequest], dict]


def add_openai_routes(engine: VllmEngine, app: FastAPI, updates: WeightUpdates) -> None:
    engine.totals = updates.totals
    app.include_router(_openai_routes(engine, updates))
    app.include_router(model_routes(updates, engine.serving.cards))
    app.mount("/", _own_routes(engine, updates))


def _openai_routes(engine: VllmEngine, updates: WeightUpdates) -> APIRouter:
    async def ready() -> None:
        await updates.until_ready()

    router = APIRouter(dependencies=[Depends(ready)])
    slots = CompletionSlots()

    @router.post("/v1/chat/completion", include_in_schema=False)
    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = checked_chat(json_object(await request.body()), engine)
        keys = body.pop("draw_keys", None)
        commits = body.pop("commitments", False)
        likeliest = body.get("top_logprobs") or 0
        if likeliest > 0:
            body["top_logprobs"] = likeliest + 1
        asked = parsed(_with_ids(body), ChatCompletionRequest)
        check_tools(asked, engine.info().capabilities)

        def finish(answer: dict, note: CurrentRequest) -> dict:
            if likeliest > 0:
                answer = with_likeliest(answer, likeliest)
            return common(_with_ends(answer, note), body)

        note = CurrentRequest(asked.max_completion_tokens or asked.max_tokens, keys, commits)
        with ExitStack() as stack:
            stack.enter_context(slots.acquired(asked.n or 1))
            work = engine.serving.chat(asked, request)
            return await answer(request, stack, work, note, finish)

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body, prompts = checked_text(json_object(await request.body()), engine)
        keys = body.pop("draw_keys", None)
        commits = body.pop("commitments", False)
        in_contract_form = body.get("logprobs") is True
        if isinstance(body.get("logprobs"), bool):  # vLLM expects the number of alternatives
            body["logprobs"] = 0 if in_contract_form else None
        if in_contract_form and body.get("echo"):
            why = "echo: not together with logprobs: true"
            raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, why, "echo")
        asked = parsed(_with_ids(body), CompletionRequest)

        def finish(answer: dict, note: CurrentRequest) -> dict:
            answer = with_text_fields(_with_ends(answer, note), in_contract_form)
            return common(with_possible(answer), body)

        slots.check_prompts(prompts, asked.n or 1)
        note = CurrentRequest(asked.max_tokens if "max_tokens" in body else None, keys, commits)
        with ExitStack() as stack:
            stack.enter_context(slots.acquired(prompts * (asked.n or 1)))
            work = engine.serving.completion(asked, request)
            return await answer(request, stack, work, note, finish)

    add_score_route(router, engine, slots, updates.ledger.held)

    def common(answer: dict, body: dict) -> dict:
        usage = bool(body.get("stream_options", {}).get("include_usage"))
        return with_usage(answer | {"model": body["model"]}, usage)

    async def answer(
        request: Request,
        stack: ExitStack,
        work: Coroutine[Any, Any, Any],
        note: CurrentRequest,
        finish: Finish,
    ) -> Response:
        current_request.set(note)
        async with _ended_when_lost(engine, updates):
            try:
                result = await until_disconnect(request.receive, work)
            except Exception as error:
                raise refusal(error) from error
        if result is None:
            return Response()
        if isinstance(result, ErrorResponse):
            raise refusal(result)
        if isinstance(result, AsyncIterator):
            return EventStream(events(result, note, finish), stack.pop_all())
        return JSONResponse(finish(result.model_dump(), note))

    async def events(source: AsyncIterator[str], note: CurrentRequest, finish: Finish) -> AsyncIterator[str]:
        """Yields server-sent events. An error is sent as an event, after the status 200."""
        try:
            async with aclosing(source), _ended_when_lost(engine, updates):
                async for text in source:
                    body = event_body(text)
                    if body is None:
                        break
                    if "error" in body:
                        raise refusal(ErrorResponse.model_validate(body))
                    yield event(finish(body, note))
        except ContractError as error:
            yield event(error.body())
        else:
            yield "data: [DONE]\n\n"

    return router


def _with_ends(answer: dict, note: CurrentRequest) -> dict:
    return with_ends(answer, note.spans, note.cut_short, note.commitments)


def _with_ids(body: dict) -> dict:
    """Adds a request for token ids to a body that requests log-probabilities."""
    return body | {"return_token_ids": True} if body.get("logprobs") is not None else body


def _own_routes(engine: VllmEngine, updates: WeightUpdates) -> ASGIApp:
    """Returns vLLM's other routes. POST requests are refused unless the server is ready."""
    serving = OtherRoutes(engine.serving)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "POST":
            updates.require_loaded()
            await serving(scope, receive, send)
            return
        await updates.until_ready()
        async with _ended_when_lost(engine, updates):
            await serving(scope, receive, send)

    return serve


@asynccontextmanager
async def _ended_when_lost(engine: VllmEngine, updates: WeightUpdates) -> AsyncIterator[None]:
    """Aborts requests that wait for lost weights, at the timeout, and raises ContractError."""

    async def abort_at_timeout() -> None:
        await updates.ledger.held.timed_out.wait()
        await engine.abort_requests()

    task = asyncio.create_task(abort_at_timeout())
    try:
        yield
    finally:
        task.cancel()
    if updates.ledger.held.timed_out.is_set():
        raise updates.ledger.held.error()
