"""Checks requests of ordinary OpenAI clients, if `openai` is declared. G9 calls it."""

from typing import Any
from urllib.parse import quote

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.several_prompts import check_several_prompts
from contracts.conformance.inference.usage import check_usages

PARTS = ("What is 2 + 3?", " And 4?", "x")
NOTHING: list[dict[str, Any]] = [  # values without effect, on both routes
    {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "logit_bias": {}},
    {"user": "somebody", "store": False, "service_tier": "auto", "metadata": {}},
    {"stop": [], "min_p": 0, "stream_options": {}},
    {"seed": None, "stop": None, "logit_bias": None, "no_such_field": None},
]


async def check_openai_surface(bench: Bench, server: Server, capabilities: list[str]) -> None:
    """Sends requests that the capability `openai` permits, and checks the responses."""
    await _check_models(server)
    await check_usages(bench, server, "stream" in capabilities)
    await check_several_prompts(bench, server, capabilities)
    for fields in NOTHING:
        await server.complete(bench.reference.prompt(5), 2, **fields)
        if bench.reference.chats:
            await server.chat([{"role": "user", "content": PARTS[0]}], 2, **fields)
    if bench.reference.chats:
        await _check_parts(server)


async def _check_models(server: Server) -> None:
    """Checks the routes that describe the model and the engine."""
    model = await server.model()
    path = f"/v1/models/{quote(model)}"
    status, body = await server.get(path)
    expect((status, body.get("id")) == (200, model), f"GET {path}: {status} {body}", f"{model!r}", "ask it")
    status, body = await server.get("/v1/models/no-such-model")
    code = (body.get("error") or {}).get("code")
    expect((status, code) == (404, "not_found"), f"{status} {body}", "404 not_found", "ask for no-such-model")
    status, body = await server.get("/version")
    known = status == 200 and isinstance(body.get("version"), str) and isinstance(body.get("engine"), str)
    expect(known, f"GET /version: {status} {body}", "200 with version and engine", "ask it")
    asked = server.http.head(f"{server.url}/health")
    async with asked as answer:
        expect(answer.status == 200, f"HEAD /health: {answer.status}", "200, as of GET", "ask it")


async def _check_parts(server: Server) -> None:
    """Checks that text parts are joined with line breaks."""
    parts = [{"type": "text", "text": text} for text in PARTS]
    (one,) = await server.chat([{"role": "user", "content": parts}], 1)
    (other,) = await server.chat([{"role": "user", "content": "\n".join(PARTS)}], 1)
    expect(
        one.prompt_token_ids == other.prompt_token_ids,
        f"prompt_token_ids {one.prompt_token_ids}",
        f"{other.prompt_token_ids}: those of the parts joined with a line break",
        f"{server}: a chat whose content is {parts}",
    )
