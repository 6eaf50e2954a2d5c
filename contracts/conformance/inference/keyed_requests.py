"""Requests with draw keys, of all forms. G17 and G18 send them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.mixed_batch import (
    TEXTS,
    Asked,
    conversation,
    ids,
    ids_of_text,
    limits_of,
)
from contracts.conformance.inference.prescribed import key_of
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.several_prompts import PATH, samples_of_each, streamed_of_each
from contracts.limits import Limits

TEMPERATURES = (0.7, 1.0, 2.0, 0.2)
TOKENS = 32
CHOICES = 4


def keyed_requests(bench: Bench, limits: Limits, capabilities: list[str]) -> list[Asked]:
    """Returns requests of each prompt in each form, and as many without keys."""
    forms: list[dict[str, Any]] = [{}]
    if "stream" in capabilities:
        forms.append({"stream": True})
    if "as_completed" in capabilities:
        forms.append({"in_lines": True})
    prompts = [ids(bench.reference.prompt(length, seed=length)) for length in (3, 9, 9, 40)]
    prompts.append(ids_of_text(TEXTS[0]))
    if bench.reference.chats:
        prompts.append(conversation(TEXTS[1]))
    asked = []
    for turn, form in enumerate(forms):
        for number, (path, prompt) in enumerate(prompts):
            n = min(1 + (turn + number) % CHOICES, limits.max_n)
            keys = [key_of((turn, number % 5, choice)) for choice in range(n)]
            wanted = TEMPERATURES[(turn + number) % len(TEMPERATURES)]
            sampling = Sampling(min(max(wanted, limits.min_temperature), limits.max_temperature))
            more = {"n": n, "draw_keys": keys}
            asked.append(Asked(path, prompt, sampling, more=more, max_tokens=TOKENS, **form))
            asked.append(Asked(path, prompt, Sampling(1.0), max_tokens=TOKENS))
    if "top_logprobs" in capabilities and bench.reference.chats:
        last = next(one for one in asked if "messages" in one.prompt and one.more)
        asked.append(replace(last, more=last.more | {"top_logprobs": 3}))
    return asked


async def several_prompts(
    bench: Bench, server: Server, capabilities: list[str], more: dict[str, Any]
) -> AsyncIterator[tuple[Sample, str, str]]:
    """Yields the choices of several prompts in each form, with their keys and what was asked.

    more: further fields, beside which no keys are sent.
    """
    prompts = [bench.reference.prompt(length, seed=length) for length in (5, 9, 3)]
    n = min(2, (await limits_of(server)).max_n)
    keys = [key_of(number) for number in range(n * len(prompts))]
    body = {"prompt": prompts, "n": n, "max_tokens": TOKENS, "logprobs": True}
    body |= more or {"draw_keys": keys}
    found = [("", samples_of_each(await server.generate(PATH, body)))]
    if "stream" in capabilities:
        found.append((" with stream: true", streamed_of_each(await server.stream(PATH, body))))
    if "as_completed" in capabilities:
        found.append((" as_completed", samples_of_each(await server.joined_lines(PATH, body))))
    for form, samples in found:
        for sample, key in zip(samples, keys, strict=True):
            yield sample, key, f"{server}: POST {PATH} {body}{form}"
