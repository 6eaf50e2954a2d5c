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
    check_told_ends,
    ending_weights,
    ends_to_try,
    expect,
)
from contracts.conformance.inference.guarantees.g09_tools import check_tools
from contracts.conformance.inference.load import check_finished
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.openai_surface import check_openai_surface
from contracts.conformance.inference.samples import Sample, samples, streamed
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.stop_texts import check_stop_strings
from contracts.conformance.inference.stopping import check_stops
from contracts.conformance.inference.template_options import check_template_options
from contracts.conformance.inference.texts import check_text, check_texts
from contracts.conformance.verdicts import NotDeclaredError

OTHER = 2  # version of weights other than those of a new run
MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]


async def ids(bench: Bench) -> str:
    """Completes prompts of ids, and stops at a token."""
    await bench.run()
    for server in bench.servers:
        await _tokens_in(bench, server)
        await check_stop_token(bench, server)
    return "ids agree"


async def routes(bench: Bench) -> str:
    """Completes text and conversations, and compares with the completions of their ids."""
    await bench.run()
    for server in bench.servers:
        await _models(server)
        await _chat(bench, server)
    return "with text and chat" if bench.reference.chats else "with text (there is no chat template)"


async def lengths(bench: Bench) -> str:
    """Stops at tokens and lengths."""
    streams = await _offers(bench, "stream")
    await bench.run()
    for server in bench.servers:
        await check_stops(bench, server, bench.weights(1), streams)
        if bench.reference.chats:
            await check_chat_length(bench, server)
    return "stop and length"


async def texts(bench: Bench) -> str:
    """Compares the text of completions with their tokens."""
    streams = await _offers(bench, "stream")
    seeds = await _offers(bench, "seed")
    await bench.run()
    for server in bench.servers:
        await check_texts(bench, server, streams, seeds)
    return "texts"


async def alternatives(bench: Bench) -> str:
    """Compares the likeliest tokens."""
    await _expect_offered(bench, "top_logprobs")
    capabilities = await bench.offered("capabilities")
    async with bench.new_run() as trainer:
        # Only weights that differ from earlier ones reveal which weights compute the alternatives.
        await trainer.publish(OTHER, weights := bench.weights(OTHER))
        for server in bench.servers:
            await check_alternatives(bench, server, capabilities, weights)
    return "top_logprobs"


async def arrays(bench: Bench) -> str:
    """Compares completions in arrays with those in lists."""
    await _expect_offered(bench, "arrays")
    streams = await _offers(bench, "stream")
    await bench.run()
    for server in bench.servers:
        await check_arrays(bench, server, bench.reference.chats, streams, _same)
    return "arrays"


async def lines(bench: Bench) -> str:
    """Compares choices that arrive as they complete."""
    await _expect_offered(bench, "as_completed")
    arrays = await _offers(bench, "arrays")
    seed = await _offers(bench, "seed")
    await bench.run()
    untimed = []  # servers whose choices had too similar lengths
    for server in bench.servers:
        await check_as_completed(bench, server, bench.reference.chats, arrays, seed)
        if not await check_lines_arrive(bench, server):
            untimed.append(str(server))
    if untimed:
        return f"as_completed (not timed at {', '.join(untimed)}: no choices of unlike lengths)"
    return "as_completed"


async def openai(bench: Bench) -> str:
    """Compares several prompts, echoes and usage."""
    await _expect_offered(bench, "openai")
    await bench.run()
    for server in bench.servers:
        await check_openai_surface(bench, server, await bench.offered("capabilities"))
    return "openai"


async def streams(bench: Bench) -> str:
    """Compares streams with complete responses, and times their events."""
    await _expect_offered(bench, "stream")
    await bench.run()
    for server in bench.servers:
        await _streamed(bench, server, bench.reference.chats)
        await check_arrival(bench, server)
    return "stream"


async def stop_strings(bench: Bench) -> str:
    """Stops at texts."""
    await _expect_offered(bench, "stop_strings")
    streams = await _offers(bench, "stream")
    lines = await _offers(bench, "as_completed")
    await bench.run()
    for server in bench.servers:
        await check_stop_strings(bench, server, streams, lines)
    return "stop_strings"


async def end_of_sequence(bench: Bench) -> str:
    """Samples end-of-sequence, which the ids must contain."""
    if not bench.reference.ends:
        raise NotDeclaredError("no end-of-sequence is configured")
    trainer = await bench.run()
    endings, swapped = await ending_weights(bench, await ends_to_try(bench))
    await trainer.publish(trainer.version + 1, swapped)
    for server in bench.servers:
        await check_end_of_sequence(bench, server, endings, swapped)
        await check_told_ends(server, endings)
    return f"end-of-sequence {bench.reference.ends[0]} is in the ids"


async def tools(bench: Bench) -> str:
    """Shows tools, and teaches the model to call one."""
    await _expect_offered(bench, "tools")
    if not bench.reference.chats:
        raise NotDeclaredError("there is no chat template")
    return await check_tools(bench, await bench.run(), MESSAGES, await _offers(bench, "stream"))


async def template_options(bench: Bench) -> str:
    """Compares prompts under options of the chat template."""
    await _expect_offered(bench, "template_options")
    if not bench.reference.chats:
        raise NotDeclaredError("there is no chat template")
    read = [await check_template_options(bench, server, MESSAGES) for server in bench.servers]
    return "template_options" if all(read) else "template_options (the model's template reads none)"


PARTS = {
    "ids": ids,
    "routes": routes,
    "lengths": lengths,
    "texts": texts,
    "alternatives": alternatives,
    "arrays": arrays,
    "lines": lines,
    "openai": openai,
    "streams": streams,
    "stop-strings": stop_strings,
    "end-of-sequence": end_of_sequence,
    "tools": tools,
    "template-options": template_options,
}


async def _offers(bench: Bench, capability: str) -> bool:
    return capability in await bench.offered("capabilities")


async def _expect_offered(bench: Bench, capability: str) -> None:
    if not await _offers(bench, capability):
        raise NotDeclaredError(f"{capability} is not offered")


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


async def _models(server: Server) -> None:
    status, models = await server.get("/v1/models")
    model = (await server.contract()).model
    listed = status == 200 and model in [entry["id"] for entry in models["data"]]
    expect(listed, f"GET /v1/models: {status} {models}", f"a list with {model!r}", "ask it")


async def _chat(bench: Bench, server: Server) -> None:
    """Checks that text and chat prompts, if the model chats, give the same completion as their ids."""
    await _as_ids(bench, server, await server.complete("2 + 3 = ", SHORT, temperature=0))
    if not bench.reference.chats:
        return
    chat = (await server.chat(MESSAGES, SHORT, temperature=0))[0]
    body = {"messages": MESSAGES, "max_tokens": SHORT, "logprobs": True, "temperature": 0}
    alias = samples(await server.generate("/v1/chat/completion", body))[0]
    _same(bench, chat, alias, f"{server}: the same at /v1/chat/completion")
    await _as_ids(bench, server, chat)


async def _as_ids(bench: Bench, server: Server, sample: Sample) -> None:
    where = f"{server}: complete {sample.prompt_token_ids} greedily, as ids"
    _same(bench, sample, await server.complete(sample.prompt_token_ids, SHORT, temperature=0), where)


def _same(bench: Bench, one: Sample, other: Sample, reproduce: str) -> None:
    """Checks that two forms of a request give the same greedy completion, up to rounding."""
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
