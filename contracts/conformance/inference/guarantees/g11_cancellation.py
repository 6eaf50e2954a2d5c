"""G11: a closed connection frees its slot within a second.

`/contract` must report it, and the work must stop, which is measured by the server's speed.
"""

import asyncio
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.departures import (
    APPEAR_S,
    ATTEMPTS,
    CHOICES,
    WITHIN_S,
    Form,
    LateError,
    disconnect,
    idle,
    start_requests,
)
from contracts.conformance.inference.early_departures import (
    disconnected_after_a_line,
    disconnected_during_an_update,
    disconnected_during_prompts,
)
from contracts.conformance.inference.lasting_work import work_stops
from contracts.conformance.inference.lost_slots import no_slot_is_lost
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

MOST_REQUESTS = 256
DISCONNECTS = 64
MANY_DISCONNECTS = 1000


async def connections(bench: Bench) -> str:
    """Closes the connections of running requests, and measures the time until the server is idle."""
    capabilities = await bench.offered("capabilities")
    forms: list[Form] = ["whole"]
    if "stream" in capabilities:
        forms.append("streamed")
    if "as_completed" in capabilities:
        forms.append("in lines")
    slowest = 0.0
    await bench.run()
    for server in bench.servers:
        count = await _enough(bench, server)
        for form in forms:
            slowest = max(slowest, await _closed_in_time(bench, server, count, form))
    return f"{count} requests ({', '.join(forms)}) were gone {slowest:.2f} s after their connections"


async def prompts(bench: Bench) -> str:
    """Closes connections while long prompts are processed."""
    await bench.run()
    for server in bench.servers:
        await disconnected_during_prompts(bench, server)
    return "others while they were read"


async def lines(bench: Bench) -> str:
    """Closes connections after the first of several lines."""
    if not {"as_completed", "openai"} <= set(await bench.offered("capabilities")):
        raise NotDeclaredError("as_completed and openai are not both offered")
    await bench.run()
    tried = [
        await disconnected_after_a_line(bench, server, await _enough(bench, server), _tokens(bench))
        for server in bench.servers
    ]
    return f"on {sum(tried)} of {len(tried)} servers some after a first line"


async def work(bench: Bench) -> str:
    """Checks that the work of closed connections stops, by the speed of other requests."""
    await bench.run()
    for server in bench.servers:
        speeds = await work_stops(bench, server)
    return (
        f"a small one took {speeds.idle:.3f} s before, {speeds.loaded:.3f} s beside and {speeds.after:.3f} s "
        "after others"
    )


async def slots(bench: Bench) -> str:
    """Closes connections at many moments of their requests."""
    await bench.run()
    for server in bench.servers:
        await no_slot_is_lost(bench, server, MANY_DISCONNECTS if bench.settings.thorough else DISCONNECTS)
    return "no slot is lost"


async def update(bench: Bench) -> str:
    """Closes connections during an update."""
    await disconnected_during_an_update(bench, await bench.run())
    return "none outlives an update"


PARTS = {
    "connections": connections,
    "prompts": prompts,
    "lines": lines,
    "work": work,
    "slots": slots,
    "update": update,
}


async def _closed_in_time(bench: Bench, server: Server, count: int, form: Form) -> float:
    """Returns the seconds until the server is idle, in the first attempt that is in time."""
    for attempt in range(ATTEMPTS):
        try:
            return await _closed(bench, server, count, form)
        except LateError as late:
            if attempt == ATTEMPTS - 1:
                raise
            if await poll(lambda: idle(server), within_s=20) is None:
                raise late
    raise AssertionError("the last attempt returns or raises")


def _tokens(bench: Bench) -> int:
    return min(bench.context - 16, 8000)


async def _enough(bench: Bench, server: Server) -> int:
    """Returns a number of requests that take longer than 1.5 * WITHIN_S at half the length.

    As many requests of full length cannot all complete before the last slot must be free.
    """
    count = 2
    while count <= MOST_REQUESTS:
        tasks = start_requests(bench, server, count, _tokens(bench) // 2, form="whole")
        done, unfinished = await asyncio.wait(tasks, timeout=1.5 * WITHIN_S)
        await disconnect(tasks)
        await poll(lambda: idle(server), within_s=60)  # long enough for a server that breaks the guarantee
        for task in done:
            task.result()  # raises if the request was refused
        if unfinished:
            return count
        count *= 2
    raise GuaranteeError(
        f"{MOST_REQUESTS} requests of {_tokens(bench) // 2} tokens end within {1.5 * WITHIN_S:g} s",
        "a server that can be seen to generate: serve a model with a longer context",
        "time them",
    )


async def _closed(bench: Bench, server: Server, count: int, form: Form) -> float:
    """Returns the seconds from closing the connections until the server is idle."""
    limits = await limits_of(server)
    tasks = start_requests(bench, server, count, _tokens(bench), form, limits=limits)
    arrived = await poll(lambda: _all_there(server, tasks), within_s=APPEAR_S)
    ended = [task for task in tasks if task.done()]
    await disconnect(tasks)
    for task in ended:
        task.result()  # raises if the request was refused
    if arrived is None:
        raise GuaranteeError(
            f"{count} requests that were just sent never showed in /contract.process together",
            "running + waiting counts every request that has come in",
            f"{server}: send {count} completions of {_tokens(bench)} tokens and look at GET /contract",
        )
    seconds = await poll(lambda: idle(server), within_s=WITHIN_S)
    if seconds is None:
        raise LateError(
            f"{await server.unfinished()} requests are there {WITHIN_S:g} s after their clients left",
            f"/contract.process shows none running and none waiting within {WITHIN_S:g} s, of no choice",
            f"{server}: send {count} completions of {_tokens(bench)} tokens, {form}, every other "
            f"one with {min(CHOICES, limits.max_n)} choices, hang up",
        )
    return seconds


async def _all_there(server: Server, tasks: list[asyncio.Task[Any]]) -> bool:
    return await server.unfinished() + sum(task.done() for task in tasks) >= len(tasks)
