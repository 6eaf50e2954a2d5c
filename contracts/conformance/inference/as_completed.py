"""Checks that each choice comes in a line of its own, where `as_completed` is declared. G9 calls it."""

import asyncio
import itertools
from typing import Any

from contracts.conformance.inference.arrays import MESSAGES, lists_of
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.load import check_finished
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.samples import Sample, samples
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

CHOICES = 4
LONG = 96  # tokens of the choice that goes on
LATE = 0.75  # of the time until it has ended
TRIES = 5
PROMPTS = 12


async def check_as_completed(bench: Bench, server: Server, chats: bool, arrays: bool) -> None:
    """Asks each route for several choices and for one, in lists and, where they are declared, in arrays."""
    asked: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": bench.reference.prompt(6)}}
    if chats:
        asked["/v1/chat/completions"] = {"messages": MESSAGES}
    most = min(CHOICES, (await limits_of(server)).max_n)
    for path, what in asked.items():
        whole = samples(await server.generate(path, what | {"max_tokens": SHORT, "logprobs": True}))
        for n, in_arrays in [(1, False), (most, False), *([(most, True)] if arrays else [])]:
            form: dict[str, Any] = {"arrays": True} if in_arrays else {}
            body = what | {"max_tokens": SHORT, "logprobs": True, "n": n} | form
            await _check(bench, server, path, body, whole[0].prompt_token_ids)


async def check_lines_arrive(bench: Bench, server: Server) -> None:
    """Checks that a short choice arrives clearly before a long one of the same request has ended.

    The choices are of two prompts, of which one meets a stop token early. What seems late is asked for again:
    this machine may have been busy.
    """
    tokens = min(LONG, bench.context - 32)
    parts = []
    prompts, stop, where = await _short_and_long(bench, server, tokens)
    for _ in range(TRIES):
        body = {"prompt": prompts, "max_tokens": tokens, "temperature": 0, "logprobs": True}
        began = asyncio.get_running_loop().time()
        lines = await server.timed_lines("/v1/completions", body | {"stop_token_ids": [stop]})
        first, last = (at - began for at, _ in (lines[0], lines[-1]))
        parts.append(first / max(last, 1e-9))
        if parts[-1] < LATE:
            return
    raise GuaranteeError(
        f"a choice that ends at once arrived after {min(parts):.0%} of the time of {tokens} tokens",
        "each choice is sent when it is complete, not with the last one",
        where,
    )


async def _short_and_long(bench: Bench, server: Server, tokens: int) -> tuple[list[list[int]], int, str]:
    """Returns two prompts, and a token that soon ends the first's greedy completion, and not the other's."""
    completed: list[Sample] = []
    for seed in range(PROMPTS):
        completed += await server.choices(bench.reference.prompt(6, seed=seed), tokens, temperature=0)
        for short, long in itertools.permutations(completed, 2):
            for token in short.token_ids[: tokens // 4]:
                if token not in long.token_ids:
                    prompts = [short.prompt_token_ids, long.prompt_token_ids]
                    return (
                        prompts,
                        token,
                        f"{server}: complete {prompts} as_completed and time the lines",
                    )
    raise GuaranteeError(
        f"the greedy completions of {PROMPTS} prompts have the same tokens",
        "they depend on the prompt",
        f"{server}: complete prompts of 6 tokens with temperature 0",
    )


async def _check(bench: Bench, server: Server, path: str, body: dict[str, Any], prompt: list[int]) -> None:
    where = f"{server}: POST {path} {body}"
    n = body["n"]
    lines = await server.lines(path, body)
    indices = [[choice.get("index") for choice in line["choices"]] for line in lines]
    right = f"a line for each of {n} choices, with its index"
    expect(sorted(indices) == [[index] for index in range(n)], f"lines of choices {indices}", right, where)
    found = [samples(lists_of(line, where) if body.get("arrays") else line)[0] for line in lines]
    expect(
        n == 1 or len({tuple(sample.token_ids) for sample in found}) > 1,
        f"{n} choices of the same tokens",
        "choices that are drawn independently",
        where,
    )
    for sample in found:
        expect(
            sample.prompt_token_ids == prompt,
            f"prompt_token_ids {sample.prompt_token_ids}",
            f"{prompt}, as of a whole answer, in each line",
            where,
        )
        bench.compare(sample, bench.weights(1), where)
        check_finished(bench, server, sample, SHORT)
