"""Starts requests whose clients disconnect, and checks that the server reports their end. G11 uses it."""

import asyncio
from typing import Any, Literal

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError
from contracts.limits import Limits

WITHIN_S = 1.0
ATTEMPTS = 4  # a busy machine may be late
APPEAR_S = 30.0
CHOICES = 4  # choices of every second request
Form = Literal["whole", "streamed", "in lines"]  # form of the response


class LateError(GuaranteeError):
    """Requests did not end in time."""


def start_requests(
    bench: Bench,
    server: Server,
    count: int,
    max_tokens: int,
    form: Form,
    length: int = 8,
    limits: Limits | None = None,
) -> list[asyncio.Task[Any]]:
    """Starts greedy completions, which do not end early, because the kit's weights avoid end-of-sequence.

    limits: if given, every second request has several choices, sampled almost greedily.
    """
    request = {"whole": server.generate, "streamed": server.stream, "in lines": server.lines}[form]
    greedy: dict[str, Any] = {"temperature": 0}
    several = {"temperature": limits.min_temperature, "n": min(CHOICES, limits.max_n)} if limits else greedy
    bodies = []
    for seed in range(count):
        sampling = several if seed % 2 else greedy
        prompt = bench.reference.prompt(length, seed=seed)
        bodies.append({"prompt": prompt, "max_tokens": max_tokens} | sampling)
    return [asyncio.create_task(request("/v1/completions", body)) for body in bodies]


async def disconnect(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def present_or_done(server: Server, tasks: list[asyncio.Task[Any]]) -> bool:
    return any(task.done() for task in tasks) or await server.unfinished() > 0


async def idle(server: Server) -> bool:
    return await server.unfinished() == 0
