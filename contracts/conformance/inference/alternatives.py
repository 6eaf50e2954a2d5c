"""Checks the most likely tokens at each position, in chat responses and in the classic form.

G9 calls it if `top_logprobs` is declared.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample, samples
from contracts.conformance.inference.server import Server

TOKENS = 6
COUNT = 3
TEMPERATURE = 1.7
CLASSIC = ("tokens", "token_logprobs", "text_offset", "top_logprobs")
MESSAGES = [{"role": "user", "content": "Go on."}]


async def check_alternatives(bench: Bench, server: Server, capabilities: list[str], weights: Weights) -> None:
    """Requests alternatives on both routes, and compares their log-probabilities with those of `weights`."""
    temperature = min(TEMPERATURE, (await limits_of(server)).max_temperature)
    for count in (0, COUNT):
        await _check_classic(bench, server, weights, count, temperature)
    if not bench.reference.chats:
        return
    await _check_chat(bench, server, weights, COUNT, {"temperature": temperature})
    if "as_completed" in capabilities:
        await _check_chat(bench, server, weights, COUNT, {"temperature": temperature}, in_lines=True)
    if "truncation" in capabilities:
        await _check_chat(bench, server, weights, COUNT - 1, {"temperature": temperature, "top_k": COUNT - 1})


async def _check_chat(
    bench: Bench,
    server: Server,
    weights: Weights,
    kept: int,
    more: dict[str, Any],
    in_lines: bool = False,
) -> None:
    """Checks chat responses. kept: number of alternatives that truncation leaves."""
    path = "/v1/chat/completions"
    body = {"messages": MESSAGES, "max_tokens": TOKENS, "logprobs": True, "top_logprobs": COUNT} | more
    where = f"{server}: POST {path} {body}, as_completed {in_lines}"
    answer = await (server.joined_lines if in_lines else server.generate)(path, body)
    (sample,) = samples(answer)
    expected = _likeliest(bench, weights, sample, kept, more["temperature"], truncated="top_k" in more)
    content = answer["choices"][0]["logprobs"]["content"]
    for given, wanted in zip(content, expected, strict=True):
        tops = given.get("top_logprobs") or []
        found = [top.get("logprob") for top in tops]
        texts = all(isinstance(top.get("token"), str) and "bytes" in top for top in tops)
        expect(texts, tops, "token, bytes and logprob in each entry of top_logprobs", where)
        _compare(bench, found, wanted, where)


async def _check_classic(
    bench: Bench, server: Server, weights: Weights, count: int, temperature: float
) -> None:
    """Checks the classic form, which `logprobs` as a number requests, including 0."""
    path = "/v1/completions"
    body = {"prompt": bench.reference.prompt(5), "max_tokens": TOKENS, "logprobs": count}
    body["temperature"] = temperature
    where = f"{server}: POST {path} {body}"
    answer = await server.generate(path, body)
    choice = answer["choices"][0]
    classic = choice.get("logprobs") or {}
    lists: list[Any] = [classic.get(name) for name in CLASSIC]
    ids = choice.get("token_ids")
    needed = lists if count else lists[:-1]
    whole = isinstance(ids, list) and all(isinstance(one, list) and len(one) == len(ids) for one in needed)
    expect(
        whole,
        f"{classic} for the ids {ids}",
        f"{CLASSIC}, each with an element for each token",
        where,
    )
    (sample,) = samples(
        answer | {"choices": [choice | {"logprobs": {"content": [{"logprob": p} for p in lists[1]]}}]}
    )
    bench.compare(sample, weights, where, temperature)
    _check_offsets(lists[2], where)
    if not count:
        return
    for tops, wanted in zip(lists[3], _likeliest(bench, weights, sample, count, temperature), strict=True):
        if "\ufffd" in "".join(tops):
            continue  # incomplete characters, many of which have the same text
        found = sorted(tops.values(), reverse=True)
        # Two tokens may have the same text, and the sampled token is included even if it is not among the
        # most likely.
        expect(
            count <= len(found) + 1, f"alternatives {tops}", f"the {count} likeliest tokens by text", where
        )
        near = [min(abs(one - p) for p in wanted) <= bench.settings.tolerance for one in found[:count]]
        nearly = sum(near) >= min(len(found), count) - 1
        expect(nearly, f"alternatives {found}", f"{wanted}, by Hugging Face", where)


def _check_offsets(offsets: Sequence[int], where: str) -> None:
    grows = offsets[:1] in ([], [0]) and all(one <= other for one, other in pairwise(offsets))
    expect(grows, f"text_offset {offsets}", "characters of the completion's text, from 0 on", where)


def _likeliest(
    bench: Bench, weights: Weights, sample: Sample, kept: int, temperature: float, truncated: bool = False
) -> list[list[float]]:
    """Returns the log-probabilities of the `kept` most likely tokens at each position, largest first."""
    expected = bench.reference.distribution(
        weights, sample.prompt_token_ids, sample.token_ids, temperature
    ).topk(kept)
    values: torch.Tensor = expected.values.log_softmax(-1) if truncated else expected.values
    return [[float(value) for value in row] for row in values]


def _compare(bench: Bench, found: list[Any], wanted: list[float], where: str) -> None:
    alike = len(found) == len(wanted) and all(
        isinstance(one, float | int) and abs(one - p) <= bench.settings.tolerance
        for one, p in zip(found, wanted, strict=True)
    )
    expect(alike, f"alternatives {found}", f"{wanted}: the likeliest first, by Hugging Face", where)
