"""The OpenAI-compatible routes of a `TokenEngine`, and `/score`.

This module must not depend on weight groups. `weight_updates` tells it if requests are accepted, and if they
have waited too long.
"""

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from contracts.errors import ContractError, ErrorCode
from contracts.inference import GenerationRequest, TokenDelta, TokenEngine
from inference_adapters.bodies import ChatBody, TextBody
from inference_adapters.completion_slots import CompletionSlots
from inference_adapters.completions import Chat, Completion, Form, LogprobsForm, Text
from inference_adapters.logprob_forms import TokenTexts
from inference_adapters.model_routes import ModelNames
from inference_adapters.prompts import ChatPrompts, prompts_of, text_prompts
from inference_adapters.request_checks import (
    calls_tools,
    check_capabilities,
    check_context,
    check_draw_keys,
    check_options,
    check_total,
    sampling_parameters,
)
from inference_adapters.score_route import add_score_route
from inference_adapters.stop_strings import until_stop
from inference_adapters.streaming import EventStream, LineStream, merged, until_disconnect
from inference_adapters.weight_updates import WeightUpdates


def generation_routes(engine: TokenEngine, updates: WeightUpdates, names: ModelNames) -> APIRouter:
    """Returns the routes that generate and score with `engine`. `names`: the names of its model."""

    async def ready() -> None:
        await updates.until_ready()

    router = APIRouter(dependencies=[Depends(ready)])
    slots = CompletionSlots()
    chats = ChatPrompts(engine)
    texts = TokenTexts(engine.decode)

    @router.post("/v1/chat/completion", include_in_schema=False)
    @router.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        if body.max_tokens and body.max_completion_tokens:
            raise ContractError(
                ErrorCode.INVALID_REQUEST,
                "max_completion_tokens: give this or max_tokens, not both",
                "max_completion_tokens",
            )
        max_tokens = body.max_tokens or body.max_completion_tokens
        check(body, max_tokens)
        form = Form(
            Chat,
            body.model,
            logprobs=_logprobs_form(body),
            with_calls=calls_tools(body),
            **_shared(body),
        )
        with ExitStack() as stack:
            stack.enter_context(slots.acquired(body.n))
            prompt = await chats.of(body)
            return await answer(request, stack, body, form, [prompt], max_tokens)

    @router.post("/v1/completions")
    async def completions(body: TextBody, request: Request) -> Response:
        check(body, body.max_tokens)
        form = Form(Text, body.model, logprobs=_logprobs_form(body), **_shared(body))
        given = prompts_of(body.prompt)
        slots.check_prompts(len(given), body.n)
        with ExitStack() as stack:
            stack.enter_context(slots.acquired(len(given) * body.n))
            prompts = await text_prompts(given, engine)
            return await answer(request, stack, body, form, prompts, body.max_tokens)

    def check(body: GenerationRequest, max_tokens: int | None) -> None:
        """Makes the checks that do not need the prompt's tokens."""
        names.check(body.model)
        check_options(body)
        check_capabilities(body, updates.capabilities())
        check_context(0, max_tokens, engine.max_context())

    async def answer(
        request: Request,
        stack: ExitStack,
        body: GenerationRequest,
        form: Form,
        prompts: list[list[int]],
        max_tokens: int | None,
    ) -> Response:
        context = engine.max_context()
        check_draw_keys(body, len(prompts))
        samplings = [
            sampling_parameters(body, max_tokens, len(prompt), context, number * body.n)
            for number, prompt in enumerate(prompts)
        ]
        check_total(body.n, sum(each[0].max_tokens for each in samplings))
        sources = [  # the engine may refuse a prompt
            engine.generate(prompt, sampling)
            for prompt, each in zip(prompts, samplings, strict=True)
            for sampling in each
        ]
        if form.stops:
            sources = [until_stop(source, form.stops, engine.decode) for source in sources]
        deltas = updates.totals.counted(merged(sources, updates.ledger.held))
        completion = Completion(form, prompts, body.n, texts)
        if body.stream:
            return EventStream(_events(completion, deltas), stack.pop_all())
        if body.as_completed:
            return LineStream(_lines(completion, deltas), stack.pop_all())
        return await until_disconnect(request.receive, _whole(completion, deltas)) or Response()

    add_score_route(router, engine, slots, updates.ledger.held)
    return router


def _shared(body: GenerationRequest) -> dict[str, Any]:
    """Returns the fields of `Form` that chat and text completions share."""
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return {"stops": stops, "with_usage": bool(body.stream_options and body.stream_options.include_usage)}


def _logprobs_form(body: ChatBody | TextBody) -> LogprobsForm:
    if body.arrays:
        return "arrays"
    return "content" if body.logprobs is True else _text_logprobs(body.logprobs)


def _text_logprobs(asked: int | None) -> LogprobsForm:
    """Returns "classic" for a number, 0 included, and "none" for None and False."""
    return "none" if asked is None or asked is False else "classic"


async def _whole(completion: Completion, deltas: AsyncIterator[tuple[int, TokenDelta]]) -> Response:
    async with aclosing(deltas):
        async for index, delta in deltas:
            completion.append_delta(index, delta)
    return response_of(completion)


def response_of(completion: Completion) -> Response:
    """Returns the complete response."""
    return Response(msgspec.json.encode(completion.whole()), media_type="application/json")


async def _lines(
    completion: Completion, deltas: AsyncIterator[tuple[int, TokenDelta]]
) -> AsyncIterator[bytes]:
    """Yields each choice as a line when it is complete. An error is the last line, after the status 200."""
    try:
        async with aclosing(deltas):
            async for index, delta in deltas:
                completion.append_delta(index, delta)
                if delta.finish_reason is not None:
                    yield msgspec.json.encode(completion.alone(index)) + b"\n"
    except ContractError as error:
        yield msgspec.json.encode(error.body()) + b"\n"


async def _events(
    completion: Completion, deltas: AsyncIterator[tuple[int, TokenDelta]]
) -> AsyncIterator[str]:
    """Yields server-sent events. An error is sent as an event, after the status 200."""
    try:
        async with aclosing(deltas):
            async for index, delta in deltas:
                for chunk in completion.chunks(index, delta):
                    yield f"data: {json.dumps(chunk)}\n\n"
    except ContractError as error:
        yield f"data: {json.dumps(error.body())}\n\n"
    else:
        if completion.form.with_usage:
            yield f"data: {json.dumps(completion.usage_chunk())}\n\n"
        yield "data: [DONE]\n\n"
