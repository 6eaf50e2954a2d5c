"""Requests at the limits of the context and of the vocabulary. G6 sends them.

`/contract` does not state the context, so the kit measures the longest prompt that the server accepts.
"""

import asyncio
from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.http_client import Answer, describe_request
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample, samples
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

CHEAP = 8192  # tokens of the longest context that is filled, unless the run is thorough
REFUSED_WITHIN_S = 0.3  # a request without a response by then counts as accepted
LARGEST_ID = 2**31 - 1
BEYOND = 4096  # distance of an id from the model's vocabulary, which an engine may pad
LAST = 8  # tokens that fill the context after a long prompt
TEXT = "The quick brown fox jumps over 13 lazy dogs. "


async def check_context_edge(bench: Bench, server: Server) -> int:
    """Checks that a request that fills the context is accepted, and one token more refused.

    Returns the number of refused requests.
    """
    if bench.reference.context > CHEAP and not bench.settings.thorough:
        return 0
    context = await longest(bench, server)
    model = (await server.contract()).model
    if context > bench.reference.context:  # the server's own context is longer than the model's, and unknown
        await _not_cut(server, model, bench.reference.prompt(bench.reference.context - 1))
        return 0
    await _filled(bench, server, context)
    routes: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": bench.reference.prompt(8)}),
        ("/v1/completions", {"prompt": TEXT}),
    ]
    if bench.reference.chats:
        routes.append(("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}))
    tried = 0
    for path, body in routes:
        body = {"model": model, "temperature": 0} | body
        first = samples(await server.generate(path, body | {"max_tokens": 1, "logprobs": True}))[0]
        rest = context - len(first.prompt_token_ids)
        for stream in await _streamed(server):
            for most in (rest + 1, rest + LAST, context):
                too_long = body | {"max_tokens": most} | stream
                await check_refused(server, BadRequest(path, too_long, 422, "context_length_exceeded"))
                tried += 1
            await _not_refused(server, path, body | {"max_tokens": rest} | stream)
    return tried


async def check_vocabulary_edge(bench: Bench, server: Server) -> int:
    """Checks that ids outside the vocabulary are refused, and that the server survives them.

    Returns the number of refused requests.
    """
    contract = await server.contract()
    rows = bench.reference.model.get_input_embeddings().weight.shape[0]
    ordinary = bench.reference.prompt(4)
    body = {"model": contract.model, "max_tokens": 2}
    tried = 0
    for beyond in (rows + BEYOND, LARGEST_ID):
        for prompt in ([beyond], [*ordinary, beyond], [beyond, *ordinary]):
            for stream in await _streamed(server):
                bad = BadRequest(
                    "/v1/completions", body | {"prompt": prompt} | stream, 422, "invalid_request"
                )
                await check_refused(server, bad)
                tried += 1
            if "score" in contract.capabilities:
                sequences = {"sequences": [ordinary, [*ordinary, *prompt]]}
                await check_refused(server, BadRequest("/score", sequences, 422, "invalid_request"))
                tried += 1
        stop = body | {"prompt": ordinary, "stop_token_ids": [beyond]}
        status, answer = await server.post("/v1/completions", stop)
        if status not in (200, 400, 422):
            raise GuaranteeError(
                f"{status} {str(answer)[:200]}",
                "a completion, or a refusal: no such id is ever sampled",
                describe_request("/v1/completions", stop),
            )
    if not await server.ready():
        raise GuaranteeError(
            f"{await server.get('/health')} after ids outside the vocabulary",
            "ready: a refusal changes nothing",
            f"{server}: complete [{LARGEST_ID}]",
        )
    return tried


async def check_full_context(bench: Bench, server: Server, weights: Weights) -> float:
    """Returns the largest error, in nats, of completions that fill the context. G1 calls it."""
    if bench.reference.context > CHEAP and not bench.settings.thorough:
        return 0.0
    context = min(await longest(bench, server), bench.reference.context)
    prompt = bench.reference.prompt(context - LAST)
    sample = await server.complete(prompt, LAST, temperature=1)
    return bench.compare(sample, weights, f"{server}: complete {len(prompt)} tokens by {LAST}, to the last")


async def longest(bench: Bench, server: Server) -> int:
    """Returns the length of the longest accepted prompt plus one, at most the model's context."""
    taken = bench.context - 1
    refused_at = bench.reference.context + 1
    length = refused_at - 2
    while refused_at - taken > 1:
        if await _accepts_length(bench, server, length):
            taken = length
        else:
            refused_at = length
        length = (taken + refused_at) // 2
    return taken + 1


async def _accepts_length(bench: Bench, server: Server, length: int) -> bool:
    body = {"model": (await server.contract()).model, "prompt": bench.reference.prompt(length)}
    return (await server.post("/v1/completions", body | {"max_tokens": 1}))[0] == 200


async def _filled(bench: Bench, server: Server, context: int) -> None:
    """Checks that a completion that fills the context has all its tokens."""
    for tokens in (1, LAST):
        prompt = bench.reference.prompt(context - tokens)
        sample = await server.complete(prompt, tokens, temperature=0)
        if sample.prompt_token_ids != prompt or len(sample.token_ids) != tokens:
            raise _cut(server, prompt, tokens, sample)
        bad = {"model": (await server.contract()).model, "prompt": prompt, "max_tokens": tokens + 1}
        await check_refused(server, BadRequest("/v1/completions", bad, 422, "context_length_exceeded"))


async def _not_cut(server: Server, model: str, prompt: list[int]) -> None:
    """Checks that a prompt that leaves one token of the model's context is refused or completed in full."""
    body = {"model": model, "prompt": prompt, "max_tokens": LAST, "temperature": 0, "logprobs": True}
    status, answer = await server.post("/v1/completions", body)
    if status != 200:
        return
    (sample,) = samples(answer)
    ended = sample.finish_reason == "stop"
    if sample.prompt_token_ids != prompt or (len(sample.token_ids) != LAST and not ended):
        raise _cut(server, prompt, LAST, sample)


def _cut(server: Server, prompt: list[int], tokens: int, sample: Sample) -> GuaranteeError:
    return GuaranteeError(
        f"a prompt of {len(prompt)} ids and max_tokens {tokens}: a prompt of "
        f"{len(sample.prompt_token_ids)} ids was completed by {len(sample.token_ids)} tokens",
        "the whole prompt and the whole completion, or 422 context_length_exceeded",
        f"{server}: complete {len(prompt)} ids",
    )


async def _streamed(server: Server) -> list[dict[str, Any]]:
    offered = "stream" in (await server.contract()).capabilities
    return [{}, {"stream": True}] if offered else [{}]


async def _soon(server: Server, path: str, body: dict[str, Any]) -> Answer | None:
    """Returns the response, or cancels the request and returns None after REFUSED_WITHIN_S."""
    asked = asyncio.create_task(server.post(path, body))
    async with cancelling([asked]):
        done, _ = await asyncio.wait([asked], timeout=REFUSED_WITHIN_S)
        return asked.result() if done else None


async def _not_refused(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = await _soon(server, path, body)
    if answer is not None and answer[0] != 200:
        raise GuaranteeError(
            f"{answer[0]} {str(answer[1])[:300]}",
            "a completion: prompt and max_tokens together are exactly the context",
            describe_request(path, body),
        )
