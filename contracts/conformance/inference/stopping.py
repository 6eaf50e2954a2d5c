"""Checks that completions end at their first stop token, by end-of-sequence, or at their length (G9)."""

from collections.abc import Iterator
from typing import Any

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.mixed_batch import Asked, conversation, ids, limits_of, send_together
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

LENGTHS = (1, 2, 3, 7, 16, 33)
TOGETHER = 40  # requests sent together


async def check_stops(bench: Bench, server: Server, weights: Weights, streams: bool) -> None:
    """Sends requests with different stop tokens and lengths, all at once, and checks how each ends."""
    prompt = bench.reference.prompt(6)
    free = await server.complete(prompt, SHORT, temperature=0)
    several = (await limits_of(server)).max_n > 1
    forms = [(False, 1), (True, 1), (False, 2), (True, 2)]
    forms = [(stream, n) for stream, n in forms if (streams or not stream) and (several or n == 1)]
    asked = []
    for i in range(TOGETHER):
        stream, n = forms[i % len(forms)]
        stops = [] if i % 3 == 2 else _stops(bench, i)
        more: dict[str, Any] = ({"n": n} if n > 1 else {}) | ({"stop_token_ids": stops} if stops else {})
        route = conversation("Go on.") if bench.reference.chats and i % 5 == 4 else None
        path, asks = route or ids(bench.reference.prompt(4 + i % 9, seed=i))
        asked.append(Asked(path, asks, Sampling(1.5), stream, more, LENGTHS[i % len(LENGTHS)]))
    greedy = [
        Asked(*ids(prompt), Sampling(0.0), i % 2 == 1 and streams, {"stop_token_ids": stops}, SHORT)
        for i, stops in enumerate(_lists_with_each(free.token_ids, bench))
    ]
    for one, choices in zip([*asked, *greedy], await send_together(server, [*asked, *greedy]), strict=True):
        where = f"{server}: send, together with others, {one}"
        n = one.more.get("n", 1)
        if len(choices) != n:
            raise GuaranteeError(f"{len(choices)} choices", f"{n}: n is honoured", where)
        for sample in choices:
            check_end(bench, sample, one, where)
            if one.sampling.greedy:
                bench.check_greedy(sample, weights, where)


def _stops(bench: Bench, seed: int) -> list[int]:
    """Returns 2 to 64 random tokens, about a seventh of a small vocabulary."""
    return bench.reference.prompt(max(2, min(64, len(bench.reference.ordinary) // 7)), seed=900 + seed)


def _lists_with_each(sampled: list[int], bench: Bench) -> Iterator[list[int]]:
    """Yields lists of stop tokens with one or two of the sampled tokens, at different positions."""
    others = [token_id for token_id in bench.reference.ordinary if token_id not in sampled][:5]
    distinct = list(dict.fromkeys(sampled))
    for i, token_id in enumerate(distinct[1:6]):
        place = i % (len(others) + 1)
        yield [*others[:place], token_id, *others[place:]]
    if len(distinct) > 2:
        yield [distinct[-1], *others, distinct[1]]


def check_end(bench: Bench, sample: Sample, asked: Asked, where: str) -> None:
    """Checks that a completion ended at its first stop token, at end-of-sequence, or at its length."""
    stops = {*asked.more.get("stop_token_ids", ()), *bench.reference.ends}
    found = [i for i, token_id in enumerate(sample.token_ids) if token_id in stops]
    length = found[0] + 1 if found else asked.max_tokens
    reason = "stop" if found else "length"
    if (len(sample.token_ids), sample.finish_reason) == (length, reason):
        return
    raise GuaranteeError(
        f"{sample.token_ids} and {sample.finish_reason!r}",
        f"{length} tokens and {reason!r}: it ends with the first stop token, which is sampled too, or at "
        "its length",
        where,
    )
