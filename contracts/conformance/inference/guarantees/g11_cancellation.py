"""G11: a closed connection frees its slot within a second.

`/contract` must say so, and the work must really stop: that is measured by the server's speed.
"""

import asyncio
import contextlib
from functools import partial
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.lasting_work import leaving, no_slot_is_lost, work_stops
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.inference.trainer_peer import TrainerPeer, packed
from contracts.conformance.verdicts import GuaranteeError
from contracts.limits import Limits

WITHIN_S = 1.0
ATTEMPTS = 4  # a busy machine may be late
APPEAR_S = 30.0
MOST_REQUESTS = 256
CHOICES = 4  # of every other request
LEAVERS = 64
MANY_LEAVERS = 1000
READERS = 4  # clients that leave while their long prompts are read
LONGEST = 16384  # tokens of such a prompt, where the context allows it
SHORT = 16  # tokens of its completion


async def cancellation(bench: Bench) -> str:
    """Closes the connections of running requests and checks how soon the server is idle."""
    slowest = 0.0
    counts = []
    streams = [False, *([True] if "stream" in await bench.offered("capabilities") else [])]
    async with bench.new_run() as trainer:
        for server in bench.servers:
            count = await _enough(bench, server)
            counts.append(count)
            for stream in streams:
                slowest = max(slowest, await _closed_in_time(bench, server, count, stream))
            await _left_while_read(bench, server)
            speeds = await work_stops(bench, server)
            await no_slot_is_lost(bench, server, MANY_LEAVERS if bench.settings.thorough else LEAVERS)
        await _left_during_an_update(bench, trainer)
    how = "whole and streamed" if len(streams) > 1 else "whole"
    return (
        f"{max(counts)} requests ({how}) were gone {slowest:.2f} s after their connections; a small one took "
        f"{speeds.idle:.3f} s before, {speeds.loaded:.3f} s beside and {speeds.after:.3f} s after others"
    )


async def _closed_in_time(bench: Bench, server: Server, count: int, stream: bool) -> float:
    """Returns the seconds of the first attempt in which the server is idle in time."""
    for attempt in range(ATTEMPTS):
        try:
            return await _closed(bench, server, count, stream)
        except LateError as late:
            if attempt == ATTEMPTS - 1:
                raise
            if await poll(lambda: _idle(server), within_s=20) is None:
                raise late
    raise AssertionError("the last attempt returns or raises")


async def _left_while_read(bench: Bench, server: Server) -> None:
    """Checks that clients leave nothing behind whose long prompts are being read."""
    length = min(bench.context - SHORT, LONGEST)
    for _ in range(ATTEMPTS):
        tasks = _send(bench, server, READERS, SHORT, stream=False, length=length)
        await poll(partial(_there_or_done, server, tasks), within_s=APPEAR_S)
        ended = [task for task in tasks if task.done()]
        await _close(tasks)
        for task in ended:
            task.result()  # raises if the request was refused
        if await poll(lambda: _idle(server), within_s=WITHIN_S) is not None:
            return
        left = await server.unfinished()
        await poll(lambda: _idle(server), within_s=20)
    raise LateError(
        f"{left} requests are there {WITHIN_S:g} s after their clients left",
        f"/contract.process shows none running and none waiting within {WITHIN_S:g} s, also of long prompts",
        f"{server}: send {READERS} prompts of {length} tokens and hang up at once",
    )


async def _left_during_an_update(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that clients that leave while weights are received leave nothing behind once they are live."""
    version = trainer.version + 1
    weights = bench.weights(version)
    request = trainer.update_request(version, weights, timeout_s=max(30.0, bench.settings.timeout_s))
    first, *rest = buckets = packed(weights, request["bucket_bytes"])
    what = "clients leave while the version is received"
    async with contextlib.AsyncExitStack() as running:
        for server in bench.servers:
            await running.enter_async_context(leaving(bench, server, 8, 1))
        await trainer.request_update(request)
        await trainer.send([first])
        queued = [task for server in bench.servers for task in _send(bench, server, 8, 200, stream=False)]
        await asyncio.sleep(0.1)  # they come in while the server may be paused
    await _close(queued)
    await trainer.send(rest)
    await trainer.wait_until_live(version, sum(bucket.nbytes for bucket in buckets), what)
    for server in bench.servers:
        if await poll(partial(_idle, server), within_s=10 * WITHIN_S) is None:
            raise LateError(
                f"{await server.unfinished()} requests are there {10 * WITHIN_S:g} s after the update during "
                "which their clients left",
                "/contract.process shows none running and none waiting",
                f"{server}: {what}",
            )
        await bench.check_content(server, weights, version, what)


class LateError(GuaranteeError):
    """Requests were still there when they should have been gone."""


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
    limits = await limits_of(server)
    tasks = _send(bench, server, count, _tokens(bench), stream, limits=limits)
    arrived = await poll(lambda: _all_there(server, count), within_s=APPEAR_S)
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
        raise LateError(
            f"{await server.unfinished()} requests are there {WITHIN_S:g} s after their clients left",
            f"/contract.process shows none running and none waiting within {WITHIN_S:g} s, of no choice",
            f"{server}: send {count} completions of {_tokens(bench)} tokens, stream {stream}, every other "
            f"one with {min(CHOICES, limits.max_n)} choices, hang up",
        )
    return seconds


def _send(
    bench: Bench,
    server: Server,
    count: int,
    max_tokens: int,
    stream: bool,
    length: int = 8,
    limits: Limits | None = None,
) -> list[asyncio.Task[Any]]:
    """Sends greedy completions, which the kit's weights never end: end-of-sequence is never the likeliest.

    Within `limits`, if they are given, every other request has several choices, which are almost greedy.
    """
    request = server.stream if stream else server.generate
    greedy: dict[str, Any] = {"temperature": 0}
    several = {"temperature": limits.min_temperature, "n": min(CHOICES, limits.max_n)} if limits else greedy
    bodies = []
    for seed in range(count):
        sampling = several if seed % 2 else greedy
        prompt = bench.reference.prompt(length, seed=seed)
        bodies.append({"prompt": prompt, "max_tokens": max_tokens} | sampling)
    return [asyncio.create_task(request("/v1/completions", body)) for body in bodies]


async def _close(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _all_there(server: Server, count: int) -> bool:
    return await server.unfinished() >= count


async def _there_or_done(server: Server, tasks: list[asyncio.Task[Any]]) -> bool:
    return any(task.done() for task in tasks) or await server.unfinished() > 0


async def _idle(server: Server) -> bool:
    return await server.unfinished() == 0
