"""The OpenAI-compatible routes over an engine's `generate`, and `/score`.

They serve engines that have no HTTP server of their own. They know nothing of weight groups; they ask
`weight_updates` only whether requests may come in, and whether lost weights have been given up.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    ChatCompletionRequest,
    GenerationRequest,
    ScoreRequest,
    ScoreResponse,
    TokenDelta,
    TokenEngine,
)
from contracts.tool_calls import for_template
from inference_adapters.bodies import ChatBody, TextBody
from inference_adapters.completions import Chat, Completion, Text
from inference_adapters.message_parts import with_text
from inference_adapters.model_routes import ModelNames
from inference_adapters.places import Places
from inference_adapters.request_checks import (
    calls_tools,
    check_capabilities,
    check_context,
    sampling_parameters,
)
from inference_adapters.streaming import EventStream, merged, until_disconnect
from inference_adapters.text_checks import check_conversation, check_text, tokenised
from inference_adapters.weight_updates import WeightUpdates


def generation_routes(engine: TokenEngine, updates: WeightUpdates, names: ModelNames) -> APIRouter:
    """Returns the routes that generate and score with `engine`, whose model has these names."""

    async def ready() -> None:
        updates.require_ready()

    router = APIRouter(dependencies=[Depends(ready)])
    places = Places()
    scoring = asyncio.Lock()

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
        names.check(body.model)
        _check_request(body, max_tokens, engine)
        with_calls = calls_tools(body)
        with ExitStack() as held:
            held.enter_context(places.held(body.n))
            prompt = await _encode_chat(body, engine)
            return await answer(request, held, body, Chat, prompt, max_tokens, body.logprobs, with_calls)

    @router.post("/v1/completions")
    async def completions(body: TextBody, request: Request) -> Response:
        names.check(body.model)
        _check_request(body, body.max_tokens, engine)
        if not isinstance(body.logprobs, bool) and body.logprobs:
            raise ContractError(
                ErrorCode.UNSUPPORTED_PARAMETER,
                f"logprobs {body.logprobs}: no alternatives here; say true",
                "logprobs",
            )
        logprobs = body.logprobs is not None and body.logprobs is not False
        with ExitStack() as held:
            held.enter_context(places.held(body.n))
            prompt = body.prompt
            if isinstance(prompt, str):
                characters = check_text("prompt", prompt, engine.max_context())
                prompt = await tokenised(engine.encode, prompt, characters=characters)
            return await answer(request, held, body, Text, prompt, body.max_tokens, logprobs)

    async def answer(
        request: Request,
        held: ExitStack,
        body: GenerationRequest,
        form: type[Chat] | type[Text],
        prompt: list[int],
        max_tokens: int | None,
        logprobs: bool,
        with_calls: bool = False,
    ) -> Response:
        samplings = sampling_parameters(body, max_tokens, len(prompt), engine.max_context())
        sources = [engine.generate(prompt, sampling) for sampling in samplings]  # may refuse the prompt
        deltas = merged(sources, updates.weights_given_up)
        completion = Completion(form, body.model, prompt, body.n, logprobs, engine.decode, with_calls)
        if body.stream:
            return EventStream(_events(completion, deltas), held.pop_all())
        return await until_disconnect(request.receive, _whole(completion, deltas)) or Response()

    @router.post("/score")
    async def score(request: ScoreRequest) -> ScoreResponse:
        if "score" not in engine.info().capabilities:
            raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, "this server does not offer /score")
        for token_ids in request.sequences:  # before any is read
            if not token_ids:
                raise ContractError(ErrorCode.INVALID_REQUEST, "sequences: one of them is empty", "sequences")
            if len(token_ids) > engine.max_context():
                raise ContractError(
                    ErrorCode.CONTEXT_LENGTH,
                    f"sequences: {len(token_ids)} tokens; the context is {engine.max_context()}",
                    "sequences",
                )
        with places.held(1):
            async with scoring:  # one after the other: each fills the engine's batches by itself
                return await engine.score(request)

    return router


def _check_request(body: GenerationRequest, max_tokens: int | None, engine: TokenEngine) -> None:
    """Checks what can be checked before the prompt is tokenised."""
    check_capabilities(body, engine.info().capabilities)
    check_context(0, max_tokens, engine.max_context())


async def _encode_chat(body: ChatCompletionRequest, engine: TokenEngine) -> list[int]:
    characters = check_conversation(body.messages, body.tools, engine.max_context())

    messages = with_text(body.messages)

    def encode() -> list[int]:
        return engine.encode_chat(for_template(messages), body.tools)

    try:
        return await tokenised(encode, characters=characters)
    except Exception as error:  # a chat template refuses a conversation with errors of its own
        raise ContractError(ErrorCode.INVALID_REQUEST, f"messages: {error!r}", "messages") from error


async def _whole(completion: Completion, deltas: AsyncIterator[tuple[int, TokenDelta]]) -> Response:
    async with aclosing(deltas):
        async for index, delta in deltas:
            completion.append_delta(index, delta)
    return JSONResponse(completion.whole())


async def _events(
    completion: Completion, deltas: AsyncIterator[tuple[int, TokenDelta]]
) -> AsyncIterator[str]:
    """Yields server-sent events.

    An error after the first one is an event itself, because the status is sent.
    """
    try:
        async with aclosing(deltas):
            async for index, delta in deltas:
                yield f"data: {json.dumps(completion.chunk(index, delta))}\n\n"
    except ContractError as error:
        yield f"data: {json.dumps(error.body())}\n\n"
    else:
        yield "data: [DONE]\n\n"
