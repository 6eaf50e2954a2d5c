"""Checks that a server frees the slots of clients that disconnect at any moment. G11 calls it."""

import asyncio
from collections.abc import Sequence

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.lasting_work import CONNECTIONS, PROBE_TOKENS, wait_until_idle
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError


async def no_slot_is_lost(bench: Bench, server: Server, clients: int) -> None:
    delays = [0.002 * (i % 16) for i in range(clients)]
    for start in range(0, clients, CONNECTIONS):
        await asyncio.gather(*(_left(bench, server, delay) for delay in delays[start : start + CONNECTIONS]))
    await wait_until_idle(server)
    prompts = [bench.reference.prompt(8, seed=seed) for seed in range(CONNECTIONS)]
    await _all_answered(server, prompts, clients)


async def _left(bench: Bench, server: Server, after_s: float) -> None:
    body = {
        "prompt": bench.reference.prompt(8),
        "max_tokens": min(bench.context - 16, 8000),
        "temperature": 0,
    }
    asked = asyncio.create_task(server.generate("/v1/completions", body))
    async with cancelling([asked]):
        await asyncio.wait([asked], timeout=after_s)


async def _all_answered(server: Server, prompts: Sequence[list[int]], clients: int) -> None:
    asked = (server.complete(prompt, PROBE_TOKENS, temperature=0) for prompt in prompts)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    if failed:
        raise GuaranteeError(
            f"{len(failed)} of {len(prompts)} requests were not answered after {clients} clients had left: "
            f"{failed[0]}",
            "an answer to each: a closed connection frees its slot",
            f"{server}: hang up {clients} times, then send {len(prompts)} requests together",
        )
