"""G9: tokens pass through unchanged by every route and form, end-of-sequence included."""

from typing import Any

from contracts.conformance.inference.alternatives import check_alternatives
from contracts.conformance.inference.arrays import check_arrays
from contracts.conformance.inference.arrival import check_arrival
from contracts.conformance.inference.as_completed import check_as_completed, check_lines_arrive
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.chat_length import check_chat_length
from contracts.conformance.inference.endings import (
    check_end_of_sequence,
    check_stop_token,
    ending_weights,
    expect,
)
from contracts.conformance.inference.guarantees.g09_tools import tools
from contracts.conformance.inference.load import check_finished
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.openai_surface import check_openai_surface
from contracts.conformance.inference.samples import Sample, samples, streamed
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.stop_texts import check_stop_strings
from contracts.conformance.inference.stopping import check_stops
from contracts.conformance.inference.texts import check_text, check_texts

MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
OPTIONAL = ("stream", "stop_strings", "top_logprobs", "arrays", "as_completed", "openai")


async def tokens(bench: Bench) -> str:
    """Sends ids, text and conversations in every offered form, and checks that the tokens agree."""
    capabilities = await bench.offered("capabilities")
    streams = "stream" in capabilities
    untimed: list[str] = []  # servers whose choices had too similar lengths
    async with bench.new_run() as trainer:
        for server in bench.servers:
            await _tokens_in(bench, server)
            await check_stop_token(bench, server)
            chats = await _chat(bench, server)
            await check_stops(bench, server, bench.weights(1), streams)
            await check_texts(bench, server, streams)
            if chats:
                await check_chat_length(bench, server)
            if "top_logprobs" in capabilities:
                await check_alternatives(bench, server, capabilities)
            if "arrays" in capabilities:
                await check_arrays(bench, server, chats, streams, _same)
            if "as_completed" in capabilities:
                await check_as_completed(
                    bench, server, chats, "arrays" in capabilities, "seed" in capabilities
                )
                timed = await check_lines_arrive(bench, server)
                untimed += [] if timed else [str(server)]
            if "openai" in capabilities:
                await check_openai_surface(bench, server, capabilities)
            if streams:
                await _streamed(bench, server, chats)
                await check_arrival(bench, server)
            if "stop_strings" in capabilities:
                await check_stop_strings(bench, server, streams, "as_completed" in capabilities)
        found = ["stop and length", "no end-of-sequence is configured"]
        if bench.reference.ends:
            greedy, swapped = await ending_weights(bench)
            await trainer.publish(2, swapped)
            for server in bench.servers:
                await check_end_of_sequence(bench, server, greedy, swapped)
            found[-1] = f"end-of-sequence {bench.reference.ends[0]} is in the ids"
        if "tools" in capabilities and chats:
            found.append(await tools(bench, trainer, MESSAGES, 3, streams))
    optional = [name for name in OPTIONAL if name in capabilities]
    paths = ", ".join(["ids, text and chat" if chats else "ids and text (no chat template)", *optional])
    if untimed:
        found.append(f"the lines of {', '.join(untimed)} were not timed: no choices of unlike lengths")
    return "; ".join([f"{paths} agree", *found])


async def _tokens_in(bench: Bench, server: Server) -> None:
    """Checks prompts of ids that no tokenizer would produce, such as end-of-sequence in the middle."""
    prompt = bench.reference.prompt(7, seed=3) + bench.reference.ends[:1] + bench.reference.prompt(4, seed=4)
    where = f"{server}: complete {prompt}"
    n = min(2, (await limits_of(server)).max_n)
    two = await server.choices(prompt, SHORT, n=n, temperature=1)
    expect(len(two) == n, f"{len(two)} choices", f"{n}: n is honoured", f"{where} with n {n}")
    for sample in two:
        expect(
            sample.prompt_token_ids == prompt, sample.prompt_token_ids, f"prompt_token_ids {prompt}", where
        )
        bench.compare(sample, bench.weights(1), where)
        check_finished(bench, server, sample, SHORT)


async def _chat(bench: Bench, server: Server) -> bool:
    """Checks that text and chat prompts give the same completion as their prompt ids.

    Returns False for a model without a chat template, with which no conversation is tried.
    """
    status, models = await server.get("/v1/models")
    model = (await server.contract()).model
    listed = status == 200 and model in [entry["id"] for entry in models["data"]]
    expect(listed, f"GET /v1/models: {status} {models}", f"a list with {model!r}", "ask it")
    await _as_ids(bench, server, await server.complete("2 + 3 = ", SHORT, temperature=0))
    if not bench.reference.chats:
        return False
    chat = (await server.chat(MESSAGES, SHORT, temperature=0))[0]
    body = {"messages": MESSAGES, "max_tokens": SHORT, "logprobs": True, "temperature": 0}
    alias = samples(await server.generate("/v1/chat/completion", body))[0]
    _same(bench, chat, alias, f"{server}: the same at /v1/chat/completion")
    await _as_ids(bench, server, chat)
    return True


async def _as_ids(bench: Bench, server: Server, sample: Sample) -> None:
    where = f"{server}: complete {sample.prompt_token_ids} greedily, as ids"
    _same(bench, sample, await server.complete(sample.prompt_token_ids, SHORT, temperature=0), where)


def _same(bench: Bench, one: Sample, other: Sample, reproduce: str) -> None:
    """Checks that two forms of a request give the same greedy completion.

    Their ids may differ by rounding, but each must be greedy.
    """
    for sample in (one, other):
        bench.check_greedy(sample, bench.weights(1), reproduce)
        bench.compare(sample, bench.weights(1), reproduce)
    if one.prompt_token_ids == other.prompt_token_ids and one.token_ids != other.token_ids:
        return
    alike = (one.prompt_token_ids, one.spans, one.finish_reason, one.text) == (
        other.prompt_token_ids, other.spans, other.finish_reason, other.text,
    )  # fmt: skip
    expect(alike, other, f"what another path gave: {one}", reproduce)


async def _streamed(bench: Bench, server: Server, chats: bool) -> None:
    asked: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": bench.reference.prompt(6)}}
    if chats:
        asked["/v1/chat/completions"] = {"messages": MESSAGES}
    for path, what in asked.items():
        body = what | {"max_tokens": SHORT, "logprobs": True, "temperature": 0}
        (one,) = samples(await server.generate(path, body))
        (other,) = streamed(await server.stream(path, body))
        _same(bench, one, other, f"{server}: POST {path} greedily, with and without stream: true")
        n = min(2, (await limits_of(server)).max_n)
        two = streamed(await server.stream(path, body | {"temperature": 1, "n": n}))
        where = f"{server}: POST {path} with n {n} and stream: true"
        expect(len(two) == n, f"{len(two)} choices", f"{n}: n is honoured", where)
        for sample in two:
            bench.compare(sample, bench.weights(1), where)
            check_finished(bench, server, sample, SHORT)
            check_text(bench, sample, where)
