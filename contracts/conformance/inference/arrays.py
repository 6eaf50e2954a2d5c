"""Checks that responses with arrays equal responses with lists, if `arrays` is declared. G9 calls it."""

import base64
import binascii
import struct
from collections.abc import Callable
from typing import Any

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.endings import expect
from contracts.conformance.inference.load import check_finished
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.samples import Sample, samples, streamed
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

PLAIN = ("prompt_token_ids", "token_ids", "logprobs")
ARRAYS = {"prompt_token_ids_base64": "i", "token_ids_base64": "i", "logprobs_base64": "f"}
MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
Compare = Callable[[Bench, Sample, Sample, str], None]


async def check_arrays(bench: Bench, server: Server, chats: bool, streams: bool, same: Compare) -> None:
    """Requests arrays and lists on each route. same: compares two greedy completions."""
    asked: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": bench.reference.prompt(6)}}
    if chats:
        asked["/v1/chat/completions"] = {"messages": MESSAGES}
    n = min(2, (await limits_of(server)).max_n)
    for path, what in asked.items():
        plain = what | {"max_tokens": SHORT, "logprobs": True}
        body = plain | {"arrays": True}
        where = f"{server}: POST {path} {body}"
        (one,) = samples(await server.generate(path, plain | {"temperature": 0}))
        (other,) = samples(lists_of(await server.generate(path, body | {"temperature": 0}), where))
        expect(
            one.prompt_token_ids == other.prompt_token_ids,
            f"prompt_token_ids {other.prompt_token_ids}",
            f"{one.prompt_token_ids}, as in lists",
            where,
        )
        same(bench, one, other, f"{where} greedily, with and without arrays")
        found = samples(lists_of(await server.generate(path, body | {"n": n}), where))
        _check_sampled(bench, server, found, n, where)
        if streams:
            chunks = await server.stream(path, body | {"n": n})
            where += " with stream: true"
            found = streamed([lists_of(chunk, where) for chunk in chunks])
            _check_sampled(bench, server, found, n, where)


def _check_sampled(bench: Bench, server: Server, found: list[Sample], n: int, where: str) -> None:
    expect(len(found) == n, f"{len(found)} choices", f"{n}: n is honoured", where)
    for sample in found:
        bench.compare(sample, bench.weights(1), where)
        check_finished(bench, server, sample, SHORT)


def lists_of(answer: dict[str, Any], where: str) -> dict[str, Any]:
    """Converts the arrays of a response or chunk to lists. Raises GuaranteeError if it has lists."""
    choices = [_as_lists(choice, where) for choice in answer["choices"]]
    return _as_lists(answer, where) | {"choices": choices}


def _as_lists(given: dict[str, Any], where: str) -> dict[str, Any]:
    plain = [name for name in PLAIN if given.get(name) is not None]
    expect(not plain, f"{' and '.join(plain)} with arrays: true", "arrays in place of lists", where)
    found: dict[str, Any] = {
        name.removesuffix("_base64"): _numbers(name, given[name], where)
        for name in ARRAYS
        if given.get(name) is not None
    }
    if "logprobs" in found:
        found["logprobs"] = {"content": [{"logprob": value} for value in found["logprobs"]]}
    return given | found


def _numbers(name: str, text: object, where: str) -> list[Any]:
    try:
        data = base64.b64decode(str(text), validate=True)
        return list(struct.unpack(f"<{len(data) // 4}{ARRAYS[name]}", data))
    except (binascii.Error, struct.error) as error:
        raise GuaranteeError(
            f"{name} {str(text)[:80]!r}: {error}", "base64 of numbers of four bytes each", where
        ) from error
