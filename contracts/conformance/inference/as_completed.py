"""Checks that each choice comes in a line of its own, where `as_completed` is declared. G9 calls it."""

from typing import Any

from contracts.conformance.inference.arrays import MESSAGES, lists_of
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.load import check_finished
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.samples import samples
from contracts.conformance.inference.server import Server

CHOICES = 4


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
            body = what | {"max_tokens": SHORT, "logprobs": True, "n": n, "as_completed": True} | form
            await _check(bench, server, path, body, whole[0].prompt_token_ids)


async def _check(bench: Bench, server: Server, path: str, body: dict[str, Any], prompt: list[int]) -> None:
    where = f"{server}: POST {path} {body}"
    n = body["n"]
    lines = await server.lines(path, body)
    indices = [[choice.get("index") for choice in line["choices"]] for line in lines]
    right = f"a line for each of {n} choices, with its index"
    expect(sorted(indices) == [[index] for index in range(n)], f"lines of choices {indices}", right, where)
    for line in lines:
        (sample,) = samples(lists_of(line, where) if body.get("arrays") else line)
        expect(
            sample.prompt_token_ids == prompt,
            f"prompt_token_ids {sample.prompt_token_ids}",
            f"{prompt}, as of a whole answer, in each line",
            where,
        )
        bench.compare(sample, bench.weights(1), where)
        check_finished(bench, server, sample, SHORT)
