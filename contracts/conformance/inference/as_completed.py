"""Checks that each choice arrives in a separate line, if `as_completed` is declared. G9 calls it."""

import asyncio
from typing import Any

from contracts.conformance.inference.arrays import MESSAGES, lists_of
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.load import check_finished
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.samples import Sample, samples
from contracts.conformance.inference.seeds import TEMPERATURE, check_differ
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

CHOICES = 4
TYPE = "application/x-ndjson"
SEED = 23
LONG = 256  # tokens of the longest choice
LATE = 0.75  # share of the time until the longest choice has arrived
TRIES = 5
TIMELY = 2  # how many of them must arrive in time; on a busy machine, one may by chance
DRAWS = 20  # requests tried to get choices of very different lengths


async def check_as_completed(bench: Bench, server: Server, chats: bool, arrays: bool, seeds: bool) -> None:
    """Requests several choices and one choice from each route, in lists and, if declared, in arrays."""
    asked: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": bench.reference.prompt(6)}}
    if chats:
        asked["/v1/chat/completions"] = {"messages": MESSAGES}
    limits = await limits_of(server)
    most = min(CHOICES, limits.max_n)
    temperature = min(TEMPERATURE, limits.max_temperature)
    for path, what in asked.items():
        plain = what | {"max_tokens": SHORT}
        whole = samples(await server.generate(path, plain | {"logprobs": True}))
        for n, in_arrays in [(1, False), (most, False), *([(most, True)] if arrays else [])]:
            form: dict[str, Any] = {"arrays": True} if in_arrays else {}
            body = plain | {"logprobs": True, "n": n, "temperature": temperature} | form
            await _check(bench, server, path, body, whole[0].prompt_token_ids)
        await _check_body(server, path, plain | {"n": most})
        if seeds:
            await _check_order(server, path, what | {"n": most}, min(LONG, bench.context // 3))


async def _check(bench: Bench, server: Server, path: str, body: dict[str, Any], prompt: list[int]) -> None:
    where = f"{server}: POST {path} {body} as_completed"
    n = body["n"]
    lines = await server.lines(path, body)
    indices = [[choice.get("index") for choice in line["choices"]] for line in lines]
    right = f"a line for each of {n} choices, with its index"
    expect(sorted(indices) == [[index] for index in range(n)], f"lines of choices {indices}", right, where)
    heads = {(line.get("id"), line.get("created")) for line in lines}
    expect(len(heads) == 1, f"lines of {heads}", "lines that share id and created", where)
    found = [samples(lists_of(line, where) if body.get("arrays") else line)[0] for line in lines]
    check_differ(found, "choices that differ, for none has a seed", where)
    for sample in found:
        expect(
            sample.prompt_token_ids == prompt,
            f"prompt_token_ids {sample.prompt_token_ids}",
            f"{prompt}, as of a whole answer, in each line",
            where,
        )
        bench.compare(sample, bench.weights(1), where, body["temperature"])
        check_finished(bench, server, sample, SHORT)


async def _check_body(server: Server, path: str, body: dict[str, Any]) -> None:
    """Checks the content type of a response without log-probabilities, and that its lines end with LF."""
    where = f"{server}: POST {path} {body} as_completed"
    whole = body | {"model": await server.model(), "as_completed": True}
    status, kind, text = await server.body_of(path, whole)
    right = status == 200 and kind == TYPE and text.count("\n") == body["n"] and text.endswith("\n")
    ends = f"{body['n']} lines that end with LF"
    expect(right, f"{status} {kind} {text[-200:]!r}", f"200 {TYPE} and {ends}", where)


async def _check_order(server: Server, path: str, body: dict[str, Any], tokens: int) -> None:
    """Checks that the lines have the same choices as a complete response with the same seed, by index.

    Stop tokens give the choices different lengths. If responses differ, requests them again with another
    seed, because rounding differs between batches and may change a token.
    """
    for attempt in range(TRIES):
        seeded = body | {"max_tokens": tokens, "logprobs": True, "seed": SEED + attempt}
        free = samples(await server.generate(path, seeded))
        stops = sorted({sample.token_ids[len(sample.token_ids) // 2] for sample in free})
        whole = samples(await server.generate(path, seeded | {"stop_token_ids": stops}))
        found = samples(await server.joined_lines(path, seeded | {"stop_token_ids": stops}))
        if _contents(found) == _contents(whole):
            return
    raise GuaranteeError(
        f"choices {_contents(found)}, by index",
        f"those of the whole answer: {_contents(whole)}",
        f"{server}: POST {path} {seeded} with stop_token_ids {stops}, as_completed and not",
    )


def _contents(found: list[Sample]) -> list[tuple[list[int], str, str]]:
    return [(sample.token_ids, sample.finish_reason, sample.text) for sample in found]


async def check_lines_arrive(bench: Bench, server: Server) -> bool:
    """Checks that a short choice arrives clearly before a long choice of the same prompt.

    If it seems late, repeats the request with twice the tokens, because this machine may have been busy, or
    the first token slow. Returns True if there were choices of such lengths.
    """
    most = min(CHOICES, (await limits_of(server)).max_n)
    tokens = min(LONG, bench.context // 3)
    parts: list[float] = []
    for attempt in range(DRAWS if most > 1 else 0):
        body: dict[str, Any] = {"prompt": bench.reference.prompt(6, seed=attempt), "n": most}
        body |= {"max_tokens": tokens, "temperature": 1, "logprobs": True}
        free = samples(await server.generate("/v1/completions", body))
        body["stop_token_ids"] = [free[0].token_ids[len(free[0].token_ids) // 8]]
        began = asyncio.get_running_loop().time()
        lines = await server.timed_lines("/v1/completions", body)
        lengths = [len(samples(line)[0].token_ids) for _, line in lines]
        if min(lengths) < max(lengths) / 3:
            at = {length: at - began for (at, _), length in zip(lines, lengths, strict=True)}
            parts.append(at[min(lengths)] / at[max(lengths)])
            tokens = min(2 * tokens, bench.context - 32)
        if len(parts) == TRIES or sum(part < LATE for part in parts) == TIMELY:
            break
    expect(
        sum(part < LATE for part in parts) >= min(TIMELY, len(parts)),
        f"a choice that ends early arrived after {min(parts, default=0.0):.0%} of the time of the longest",
        "each choice is sent when it is complete, not with the last one",
        f"{server}: complete a prompt of 6 tokens with n {most} and a stop token, time the lines",
    )
    return bool(parts)
