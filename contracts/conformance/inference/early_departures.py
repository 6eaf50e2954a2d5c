"""Clients that leave before their first token: their prompts are read, or an update keeps them waiting.

It is called by G11.
"""

import asyncio
import contextlib
from functools import partial

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.departures import (
    APPEAR_S,
    ATTEMPTS,
    WITHIN_S,
    LateError,
    hang_up,
    idle,
    sent,
    there_or_done,
)
from contracts.conformance.inference.lasting_work import leaving
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.inference.trainer_peer import TrainerPeer

READERS = 4  # clients that leave while their long prompts are read
LONGEST = 16384  # tokens of such a prompt, where the context allows it
SHORT = 16  # tokens of its completion


async def left_while_read(bench: Bench, server: Server) -> None:
    """Checks that clients leave nothing behind whose long prompts are being read."""
    length = min(bench.context - SHORT, LONGEST)
    for _ in range(ATTEMPTS):
        tasks = sent(bench, server, READERS, SHORT, form="whole", length=length)
        await poll(partial(there_or_done, server, tasks), within_s=APPEAR_S)
        ended = [task for task in tasks if task.done()]
        await hang_up(tasks)
        for task in ended:
            task.result()  # raises if the request was refused
        if await poll(lambda: idle(server), within_s=WITHIN_S) is not None:
            return
        left = await server.unfinished()
        await poll(lambda: idle(server), within_s=20)
    raise LateError(
        f"{left} requests are there {WITHIN_S:g} s after their clients left",
        f"/contract.process shows none running and none waiting within {WITHIN_S:g} s, also of long prompts",
        f"{server}: send {READERS} prompts of {length} tokens and hang up at once",
    )


async def left_during_an_update(bench: Bench, trainer: TrainerPeer) -> None:
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
        queued = [task for server in bench.servers for task in sent(bench, server, 8, 200, form="whole")]
        await asyncio.sleep(0.1)  # they come in while the server may be paused
    await hang_up(queued)
    await trainer.send(rest)
    await trainer.wait_until_live(version, sum(bucket.nbytes for bucket in buckets), what)
    for server in bench.servers:
        if await poll(partial(idle, server), within_s=10 * WITHIN_S) is None:
            raise LateError(
                f"{await server.unfinished()} requests are there {10 * WITHIN_S:g} s after the update during "
                "which their clients left",
                "/contract.process shows none running and none waiting",
                f"{server}: {what}",
            )
        await bench.check_content(server, weights, version, what)
