"""The part of G8 with requests: finished, streamed, cancelled and refused ones, which must not leak.

Also cancels requests with many choices, because servers count slots by choices.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.growth import Growth
from contracts.conformance.inference.load import check_finished
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.verdicts import GuaranteeError
from contracts.errors import ErrorCode
from contracts.limits import MAX_N

AT_A_TIME = 16
REFUSED_AT_A_TIME = 64  # with many choices each, so that leaked slots would exhaust the server
TOKENS = 4  # tokens of a request that finishes
EVENTS = 8  # batches of each kind
THOROUGH_EVENTS = 100
LONG = 512  # tokens of a prompt that takes some time to process
DISCONNECT_WITHIN_S = 0.02  # longest time after which a client disconnects
IDLE_WITHIN_S = 30.0
NO_TOKEN = 2**31 - 1  # an id that no vocabulary has

Batch = Callable[[Server], Awaitable[None]]


async def check_requests(bench: Bench, growth: Growth) -> int:
    """Sends batches of each kind and checks that resources stay flat. Returns the number of requests."""
    seeds = itertools.count()
    kinds: dict[str, tuple[Batch, int]] = {
        "requests that finished": (lambda server: _finished(bench, server, seeds, False), AT_A_TIME),
        "requests that were cancelled": (lambda server: _cancelled(bench, server, seeds), AT_A_TIME),
        "cancelled choices of one request": (lambda server: _choices(bench, server, seeds), MAX_N),
        "requests that were refused": (lambda server: _refused(bench, server), REFUSED_AT_A_TIME),
    }
    if "stream" in await bench.offered("capabilities"):
        kinds["streams that finished"] = (lambda s: _finished(bench, s, seeds, True), AT_A_TIME)
    events = THOROUGH_EVENTS if bench.settings.thorough else EVENTS
    sent = 0
    for what, (batch, size) in kinds.items():

        async def event(batch: Batch = batch, what: str = what) -> float:
            began = time.monotonic()
            for server in bench.servers:
                await batch(server)
                await _becomes_idle(server, what)
            return time.monotonic() - began

        await growth.check_flat(event, events, what, size)
        sent += events * size * len(bench.servers)
    return sent


async def _becomes_idle(server: Server, what: str) -> None:
    if await poll(lambda: _idle(server), within_s=IDLE_WITHIN_S) is None:
        raise GuaranteeError(
            f"{await server.unfinished()} requests run or wait {IDLE_WITHIN_S:g} s after {what}",
            "none: a request that is over takes no slot",
            f"{server}: {AT_A_TIME} {what}, then GET /contract",
        )


async def _idle(server: Server) -> bool:
    return await server.unfinished() == 0


async def _finished(bench: Bench, server: Server, seeds: Iterator[int], stream: bool) -> None:
    prompts = [bench.reference.prompt(8, seed=next(seeds)) for _ in range(AT_A_TIME)]
    asked = (server.complete(prompt, TOKENS, stream, temperature=1) for prompt in prompts)
    for sample in await asyncio.gather(*asked):
        check_finished(bench, server, sample, TOKENS)


async def _cancelled(bench: Bench, server: Server, seeds: Iterator[int]) -> None:
    """Disconnects before a request is scheduled, during its prompt, or later."""
    streams = "stream" in await bench.offered("capabilities")
    lengths = [8, min(LONG, bench.context // 2)]
    bodies = [
        {
            "prompt": bench.reference.prompt(lengths[i % 2], seed=next(seeds)),
            "max_tokens": bench.context // 2 - 8,
            **({"stream": True} if streams and i % 4 > 1 else {}),
        }
        for i in range(AT_A_TIME)
    ]
    await _disconnect(server, bodies)


async def _choices(bench: Bench, server: Server, seeds: Iterator[int]) -> None:
    limits = (await server.contract()).limits
    most = min(limits.max_n, MAX_N) if limits else MAX_N
    prompt = bench.reference.prompt(8, seed=next(seeds))
    await _disconnect(server, [{"prompt": prompt, "n": most, "max_tokens": bench.context // 2}])


async def _disconnect(server: Server, bodies: list[dict[str, Any]]) -> None:
    """Sends the requests and soon closes their connections."""
    model = (await server.contract()).model
    asked = [
        asyncio.create_task(server.post("/v1/completions", {"model": model, "temperature": 1} | body))
        for body in bodies
    ]
    for i, task in enumerate(asked):
        await asyncio.sleep(DISCONNECT_WITHIN_S / len(asked) if i % 2 or len(asked) == 1 else 0)
        task.cancel()
    await asyncio.wait(asked)


async def _refused(bench: Bench, server: Server) -> None:
    """Sends requests that are refused at different stages."""
    contract = await server.contract()
    most = contract.limits.max_n if contract.limits else MAX_N
    body = {"model": contract.model, "prompt": bench.reference.prompt(8), "max_tokens": 4, "n": most}
    wrong: list[dict[str, object]] = [
        {"max_tokens": 2**31 - 1},
        {"temperature": -1.0},
        {"model": "no such model"},
        {"no_such_field": 1},
        {"prompt": [NO_TOKEN]},
    ]
    bodies = [body | change | {"stream": stream} for change in wrong for stream in (False, True)]
    bodies = list(itertools.islice(itertools.cycle(bodies), REFUSED_AT_A_TIME))
    answers = await asyncio.gather(*(server.post("/v1/completions", each) for each in bodies))
    for (status, answer), each in zip(answers, bodies, strict=True):
        full = answer.get("error", {}).get("code") == ErrorCode.OVERLOADED  # too many choices at a time
        if status < 400 or (status >= 500 and not full):
            raise GuaranteeError(
                f"{server}: {status} {answer}",
                "the refusal of a bad request, after however many others",
                f"POST /v1/completions {each}",
            )
