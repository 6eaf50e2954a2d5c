"""Checks that choice i is sampled with `seed` + i, and that equal seeds give equal ids. G4 calls it.

Rounding differs between batches and may change a token, so unequal pairs are sent again.
"""

import asyncio
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.mixed_batch import Asked, ids, limits_of
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

SEEDS = (0, 7, -7, 8, 1_000_003, 2**31 + 5, 2**62 + 99)
TEMPERATURE = 5.0  # at a lower temperature, a model may repeat one token endlessly
TOKENS = 24
BY_CHANCE = -35.0  # log-probability above which two requests may give the same completion by chance
CHOICES = 4
TRIES = 6  # attempts at a pair that should be equal


async def check_seeds(bench: Bench, server: Server, streams: bool, in_lines: bool) -> None:
    """Sends requests with and without seeds together, twice, and compares them."""
    prompt = bench.reference.prompt(9)
    limits = await limits_of(server)
    n = min(CHOICES, limits.max_n)
    temperature = min(TEMPERATURE, limits.max_temperature)

    def asked(stream: bool = False, in_lines: bool = False, **more: Any) -> Asked:
        return Asked(*ids(prompt), Sampling(temperature), stream and streams, more, TOKENS, in_lines)

    single = [asked(stream=i % 2 == 1, seed=seed) for i, seed in enumerate(SEEDS)]
    noise = [asked() for _ in range(16)]
    several = [asked(seed=7, n=n), asked(stream=True, seed=7, n=n)]
    if in_lines:
        several.append(asked(in_lines=True, seed=7, n=n))
    each = [asked(seed=7 + i) for i in range(n)]
    answers = await asyncio.gather(*(one.send(server) for one in [*noise, *single, *several, *each]))
    again = await asyncio.gather(*(one.send(server) for one in reversed(single)))
    rest = iter(answers)
    unseeded, first, choices, alone = (
        [next(rest) for _ in group] for group in (noise, single, several, each)
    )
    for request, one, other in zip(single, first, reversed(again), strict=True):
        await _alike(server, one[0], other[0], request, request, "the same ids for the same seed")
    for found, request in zip(choices, several, strict=True):
        check_differ(
            found, "choices that differ, since choice i is sampled with seed + i", f"{server}: {request}"
        )
        for i, (choice, other) in enumerate(zip(found, alone, strict=True)):
            expected = f"choice {i} is that of a request with seed + {i}"
            await _alike(server, choice, other[0], request, each[i], expected, i)
    check_differ([one[0] for one in first], "other ids for another seed", f"{server}: {single[0]}")
    check_differ([one[0] for one in unseeded], "other ids each time without a seed", f"{server}: {noise[0]}")


async def check_without_seeds(bench: Bench, server: Server) -> None:
    """Checks that repeated requests, and the choices of one request, differ from each other."""
    prompt = bench.reference.prompt(9)
    limits = await limits_of(server)
    n = min(CHOICES, limits.max_n)
    temperature = min(TEMPERATURE, limits.max_temperature)
    request = Asked(*ids(prompt), Sampling(temperature), False, {"n": n}, TOKENS)
    found = [sample for _ in range(2) for sample in await request.send(server)]
    check_differ(found, "completions that differ, for none has a seed", f"{server}: {request}, twice")


def check_differ(found: list[Sample], expected: str, where: str) -> None:
    """Checks that no two samples are equal, unless that may happen by chance."""
    seen: dict[tuple[int, ...], int] = {}
    for i, sample in enumerate(found):
        before = seen.setdefault(tuple(sample.token_ids), i)
        if before != i and sum(sample.logprobs) < BY_CHANCE:
            raise GuaranteeError(f"completions {before} and {i} are both {sample.token_ids}", expected, where)


async def _alike(
    server: Server,
    one: Sample,
    other: Sample,
    asked: Asked,
    counterpart: Asked,
    expected: str,
    choice: int = 0,
) -> None:
    """Checks that choice `choice` of a request equals the first choice of its counterpart."""
    for _ in range(TRIES - 1):
        if one.token_ids == other.token_ids:
            return
        found, others = await asyncio.gather(asked.send(server), counterpart.send(server))
        one = found[choice]
        other = others[0]
    if one.token_ids != other.token_ids:
        raise GuaranteeError(
            f"a pair with equal seeds differs: {one.token_ids}, {other.token_ids}",
            expected,
            f"{server}: {asked}, and {counterpart}",
        )
