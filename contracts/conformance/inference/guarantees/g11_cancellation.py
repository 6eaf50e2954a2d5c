"""G11: a closed connection frees its slot within a second."""

import asyncio
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.verdicts import GuaranteeError

WITHIN_S = 1.0
MOST_REQUESTS = 256


async def cancellation(bench: Bench) -> str:
    """Closes the connections of running requests and checks how soon the server is idle."""
    slowest = 0.0
    counts = []
    streams = [False, *([True] if "stream" in await bench.offered("capabilities") else [])]
    async with bench.new_run():
        for server in bench.servers:
            count = await _enough(bench, server)
            counts.append(count)
            for stream in streams:
                slowest = max(slowest, await _closed(bench, server, count, stream))
    how = "whole and streamed" if len(streams) > 1 else "whole"
    return f"{max(counts)} requests ({how}) were gone {slowest:.2f} s after their connections"


def _tokens(bench: Bench) -> int:
    return min(bench.context - 16, 8000)


async def _enough(bench: Bench, server: Server) -> int:
    """Returns a number of requests that takes longer than 1.5 times `WITHIN_S`, at half the length.

    That many requests of full length, once running, cannot end by themselves before a slot must be free.
    """
    count = 2
    while count <= MOST_REQUESTS:
        tasks = _send(bench, server, count, _tokens(bench) // 2, stream=False)
        done, unfinished = await asyncio.wait(tasks, timeout=1.5 * WITHIN_S)
        await _close(tasks)
        await poll(lambda: _idle(server), within_s=60)  # long enough for a server that breaks the guarantee
        for task in done:
            task.result()  # raises if the request was refused
        if len(unfinished) == count:
            return count
        count *= 2
    raise GuaranteeError(
        f"{MOST_REQUESTS} requests of {_tokens(bench) // 2} tokens end within {1.5 * WITHIN_S:g} s",
        "a server that can be seen to generate: serve a model with a longer context",
        "time them",
    )


async def _closed(bench: Bench, server: Server, count: int, stream: bool) -> float:
    """Returns the seconds from closing the connections until the server is idle."""
    tasks = _send(bench, server, count, _tokens(bench), stream)
    arrived = await poll(lambda: _all_there(server, count), within_s=10)
    ended = [task for task in tasks if task.done()]
    await _close(tasks)
    for task in ended:
        task.result()  # raises if the request was refused
    if arrived is None:
        raise GuaranteeError(
            f"{count} requests that were just sent never showed in /contract.process together",
            "running + waiting counts every request that has come in",
            f"{server}: send {count} completions of {_tokens(bench)} tokens and look at GET /contract",
        )
    seconds = await poll(lambda: _idle(server), within_s=WITHIN_S)
    if seconds is None:
        raise GuaranteeError(
            f"{await server.unfinished()} requests are there {WITHIN_S:g} s after their clients left",
            f"/contract.process shows none running and none waiting within {WITHIN_S:g} s",
            f"{server}: send {count} completions of {_tokens(bench)} tokens, stream {stream}, hang up",
        )
    return seconds


def _send(bench: Bench, server: Server, count: int, max_tokens: int, stream: bool) -> list[asyncio.Task[Any]]:
    """Sends greedy completions, which the kit's weights never end: end-of-sequence is never the likeliest."""
    request = server.stream if stream else server.generate
    bodies = [
        {"prompt": bench.reference.prompt(8, seed=seed), "max_tokens": max_tokens, "temperature": 0}
        for seed in range(count)
    ]
    return [asyncio.create_task(request("/v1/completions", body)) for body in bodies]


async def _close(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _all_there(server: Server, count: int) -> bool:
    return await server.unfinished() >= count


async def _idle(server: Server) -> bool:
    return await server.unfinished() == 0
