"""Clients that disconnect before their first token, during prompt processing or an update. G11 calls it."""

import asyncio
import contextlib
import itertools
from functools import partial
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.departures import (
    APPEAR_S,
    ATTEMPTS,
    WITHIN_S,
    LateError,
    disconnect,
    idle,
    present_or_done,
    start_requests,
)
from contracts.conformance.inference.event_stream import Event
from contracts.conformance.inference.http_client import decoded
from contracts.conformance.inference.lasting_work import disconnecting
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.inference.trainer_peer import TrainerPeer

READERS = 4  # clients that disconnect while their long prompts are processed
LONGEST = 16384  # tokens of such a prompt, if the context allows it
SHORT = 16  # tokens of its completion
LONG = 96  # tokens of a completion that meets no stop token early
PROMPTS = 12  # prompts tried to find two with different completions


async def disconnected_during_prompts(bench: Bench, server: Server) -> None:
    """Checks that requests end when their clients disconnect while long prompts are processed."""
    length = min(bench.context - SHORT, LONGEST)
    for _ in range(ATTEMPTS):
        tasks = start_requests(bench, server, READERS, SHORT, form="whole", length=length)
        await poll(partial(present_or_done, server, tasks), within_s=APPEAR_S)
        ended = [task for task in tasks if task.done()]
        await disconnect(tasks)
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


async def disconnected_after_a_line(bench: Bench, server: Server, count: int, max_tokens: int) -> bool:
    """Checks that requests end when clients disconnect after the first of two choices.

    The choices have two prompts, one of which soon meets a stop token. If a request ends early or has no
    line, sends fewer requests. Returns True if every client had received exactly one of the choices.
    """
    found = await _short_and_long(bench, server)
    if found is None:
        return False
    body = found | {"model": await server.model(), "max_tokens": max_tokens, "temperature": 0}
    body["as_completed"] = True
    left: int | None = None
    for _ in range(2 * ATTEMPTS):
        lines: list[list[Event]] = [[] for _ in range(count)]
        tasks = [asyncio.create_task(server.ask_lines("/v1/completions", body, each)) for each in lines]
        await poll(partial(_each_has_a_line, lines, tasks), within_s=APPEAR_S)
        tried = all(_has_a_choice(each) for each in lines) and not any(task.done() for task in tasks)
        await disconnect(tasks)
        in_time = await poll(lambda: idle(server), within_s=WITHIN_S) is not None
        if tried and in_time:
            return True
        if tried:
            left = await server.unfinished()
        else:
            count = max(1, count // 2)
        await poll(lambda: idle(server), within_s=20)
    if left is None:
        return False
    raise LateError(
        f"{left} requests are there {WITHIN_S:g} s after their clients left, which had a line each",
        f"/contract.process shows none running and none waiting within {WITHIN_S:g} s, of no choice",
        f"{server}: send {count} times {body}, and hang up after the first line",
    )


async def _each_has_a_line(lines: list[list[Event]], tasks: list[asyncio.Task[int]]) -> bool:
    return all(each or task.done() for each, task in zip(lines, tasks, strict=True))


def _has_a_choice(lines: list[Event]) -> bool:
    return bool(lines) and "choices" in decoded(lines[0][1])


async def _short_and_long(bench: Bench, server: Server) -> dict[str, Any] | None:
    """Returns two prompts, and a token that soon ends the greedy completion of only one of them."""
    tokens = min(LONG, bench.context - SHORT)
    completed: list[Sample] = []
    for seed in range(PROMPTS):
        completed.append(await server.complete(bench.reference.prompt(6, seed=seed), tokens, temperature=0))
        for short, long in itertools.permutations(completed, 2):
            for token in short.token_ids[: tokens // 4]:
                if token not in long.token_ids:
                    prompts = [short.prompt_token_ids, long.prompt_token_ids]
                    return {"prompt": prompts, "stop_token_ids": [token]}
    return None


async def disconnected_during_an_update(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that requests whose clients disconnect during an update have ended once it is live."""
    version = trainer.version + 1
    weights = bench.weights(version)
    request = trainer.update_request(version, weights, timeout_s=max(30.0, bench.settings.timeout_s))
    first, *rest = buckets = packed(weights, request["bucket_bytes"])
    what = "clients leave while the version is received"
    async with contextlib.AsyncExitStack() as running:
        for server in bench.servers:
            await running.enter_async_context(disconnecting(bench, server, 8, 1))
        await trainer.request_update(request)
        await trainer.send([first])
        queued = [
            task for server in bench.servers for task in start_requests(bench, server, 8, 200, form="whole")
        ]
        await asyncio.sleep(0.1)  # the requests arrive while the server may be paused
    await disconnect(queued)
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
