"""Checks the token counts in responses and at the end of streams. G9 calls it."""

from collections.abc import Sequence
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.samples import Sample, samples, streamed
from contracts.conformance.inference.server import Server

TOKENS = 5
NAMES = ("prompt_tokens", "completion_tokens", "total_tokens")


def check_usage(usage: Any, prompts: Sequence[Sequence[int]], found: Sequence[Sample], where: str) -> None:
    """Checks that `usage` counts each prompt once and the tokens of every choice."""
    prompt = sum(map(len, prompts))
    sampled = sum(len(sample.token_ids) for sample in found)
    expected = dict(zip(NAMES, (prompt, sampled, prompt + sampled), strict=True))
    given = {name: usage.get(name) for name in NAMES} if isinstance(usage, dict) else usage
    expect(given == expected, f"usage {given}", f"{expected}: each prompt is counted once", where)


async def check_usages(bench: Bench, server: Server, streams: bool) -> None:
    """Checks the usage of several choices, and of a stream that requests it."""
    path = "/v1/completions"
    prompt = bench.reference.prompt(6)
    n = min(2, (await limits_of(server)).max_n)
    body = {"prompt": prompt, "max_tokens": TOKENS, "n": n, "logprobs": True}
    answer = await server.generate(path, body)
    check_usage(answer.get("usage"), [prompt], samples(answer), f"{server}: POST {path} {body}")
    if not streams:
        return
    asked = body | {"stream_options": {"include_usage": True}}
    where = f"{server}: POST {path} {asked} with stream: true"
    *chunks, last = await server.stream(path, asked)
    expect(last["choices"] == [], f"the last chunk {last}", "choices [] and the usage", where)
    check_usage(last.get("usage"), [prompt], streamed(chunks), where)
    others = [chunk for chunk in chunks if chunk.get("usage", "absent") is not None]
    expect(not others, f"a chunk before the last with {others[:1]}", "usage: null in every chunk", where)
