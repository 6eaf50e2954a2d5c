"""Checks version labels under load, of several choices, after failed updates and takeovers. G5 calls it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.departures import disconnect
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.mixed_batch import Asked, ids, limits_of
from contracts.conformance.inference.recovery import restarts, restore_service
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

TOGETHER = 24  # additional requests during an update; some have several choices
LENGTH = 96
QUEUED = 6
QUEUED_S = 1.0  # if no request is answered within this time, requests wait for the update
ROUNDS = 16  # most rounds of such requests

Sent = list[tuple[Server, asyncio.Task[list[Sample]]]]


async def under_load(bench: Bench, update: Callable[[], Awaitable[None]]) -> list[tuple[Server, Sample]]:
    """Calls `update()` while streams and requests with several choices run, and returns their completions."""
    capabilities = await bench.offered("capabilities")
    streams = "stream" in capabilities
    tasks = []
    for server in bench.servers:
        several = (await limits_of(server)).max_n > 1
        for i in range(TOGETHER):
            more: dict[str, Any] = {}
            if several and i % 3 == 0:
                # Stop tokens make the choices end at different lengths.
                more = {"n": 2, "stop_token_ids": bench.reference.prompt(3, seed=i)}
            prompt = bench.reference.prompt(4 + i, seed=200 + i)
            stream = streams and i % 2 == 1
            in_lines = bool(more) and i % 4 == 0 and "as_completed" in capabilities
            asked = Asked(*ids(prompt), Sampling(1.0), stream, more, LENGTH + 8 * (i % 8), in_lines)
            tasks.append((server, asyncio.create_task(asked.send(server))))
    async with cancelling([task for _, task in tasks]):
        await update()
        return [(server, sample) for server, task in tasks for sample in await task]


async def queued_over_an_update(
    bench: Bench, trainer: TrainerPeer, kv_cache: str
) -> list[tuple[Server, Sample]]:
    """Sends requests between the buckets of a `paused` update, and returns their completions."""
    version = trainer.version + 1
    weights = bench.weights(version)
    silence_s = bench.settings.patience_s + ROUNDS * QUEUED_S
    request = trainer.update_request(version, weights, kv_cache=kv_cache, timeout_s=silence_s)
    first, *rest = buckets = packed(weights, request["bucket_bytes"])
    await trainer.request_update(request)
    await trainer.send([first])
    sent: Sent = []
    try:
        await asyncio.gather(*(_send_until_queued(bench, server, sent) for server in bench.servers))
        await trainer.send(rest)
        size = sum(bucket.nbytes for bucket in buckets)
        await trainer.wait_until_live(version, size, "send requests between two buckets")
        return [(server, sample) for server, task in sent for sample in await task]
    finally:
        await disconnect([task for _, task in sent])


async def _send_until_queued(bench: Bench, server: Server, sent: Sent) -> None:
    """Sends rounds of requests to a server until two consecutive rounds get no response.

    A server pauses some time after it has received the first bucket, so it may answer the first requests.
    Some servers never pause.
    """
    silent = 0
    for _ in range(ROUNDS):
        batch = await _send_round(bench, server)
        sent += [(server, task) for task in batch]
        responded, _ = await asyncio.wait(batch, timeout=QUEUED_S)
        silent = 0 if responded else silent + 1
        if silent == 2 or any(task.exception() for task in responded):
            return


async def _send_round(bench: Bench, server: Server) -> list[asyncio.Task[list[Sample]]]:
    """Sends a few short requests, every second one with two choices."""
    n = min(2, (await limits_of(server)).max_n)
    batch = []
    for i in range(QUEUED):
        more = {"n": n} if i % 2 and n > 1 else {}
        asked = Asked(*ids(bench.reference.prompt(5 + i, seed=i)), Sampling(1.0), False, more, SHORT)
        batch.append(asyncio.create_task(asked.send(server)))
    return batch


async def after_a_failed_update(bench: Bench, trainer: TrainerPeer) -> None:
    """Aborts an update, and checks that its version is never reported as live."""
    live = trainer.version
    version = live + 1
    staged = "staged" in await bench.offered("capabilities")
    receive = "staged" if staged else "paused"
    # The timeout must last until every server has been checked.
    request = trainer.update_request(
        version, bench.weights(version), receive=receive, timeout_s=bench.settings.answer_s
    )
    what = f"request version {version} ({receive}) while {live} is live, and send nothing"
    await trainer.request_update(request)
    for server in bench.servers:
        await _expect_receiving(server, version, what)
        if staged:
            await bench.check_content(server, bench.weights(live), live, what)
    body = {"run": trainer.run, "epoch": trainer.epoch, "version": version}
    await trainer.post_each("/abort_weight_update", [body] * len(bench.servers))
    for server in bench.servers:
        if await restarts(server):
            continue
        status = await trainer.outcome(server, version)
        weights = (await server.contract()).weights
        if status.state == "failed" and not status.touched and weights.version != live:
            raise GuaranteeError(
                f"/contract says {weights.model_dump()}",
                f"version {live}, since {version} failed untouched",
                f"{server}: {what}; call it off",
            )
        if await server.ready():
            await bench.check_content(server, bench.weights(live), live, f"{what}; call it off")
    await restore_service(bench, trainer, what)


async def _expect_receiving(server: Server, version: int, what: str) -> None:
    """Checks that an update without any bucket sent is live nowhere, and that the server is ready."""
    weights = (await server.contract()).weights
    status, body = await server.get(f"/weight_update/{version}?wait_s=0")
    if not await server.ready():
        found = await server.get("/health")
        raise GuaranteeError(f"GET /health: {found}", "200: it is ready throughout", f"{server}: {what}")
    if weights.state == "live" or body.get("state") != "receiving":
        raise GuaranteeError(
            f"/contract says {weights.model_dump()}, /weight_update/{version} {status} {body}",
            "both say receiving until the weights are there",
            f"{server}: {what}",
        )


async def after_takeovers(bench: Bench) -> None:
    """Takes over the servers with runs whose versions are lower than before, and checks their labels."""
    before: int | None = None
    for versions in ((0, 3), (2,)):
        trainer = bench.trainer()
        try:
            await trainer.join()
            if before is not None:
                what = f"take over while version {before} of another run is live, and publish nothing"
                for server in bench.servers:
                    await bench.check_content(server, bench.weights(40 + before), before, what)
            for version in versions:
                # No other run sent these weights under this version.
                weights = bench.weights(40 + version)
                await trainer.publish(version, weights)
                for server in bench.servers:
                    what = f"take over, publish version {version} after higher ones"
                    await bench.check_content(server, weights, version, what)
                    await _expect_label(bench, server, version, what)
                before = version
        finally:
            trainer.leave()


async def _expect_label(bench: Bench, server: Server, version: int, what: str) -> None:
    """Checks the labels of both choices of a request."""
    if (await limits_of(server)).max_n < 2:
        return
    for sample in await server.choices(bench.reference.prompt(5), SHORT, n=2, temperature=1):
        if [span[0] for span in sample.spans] != [version]:
            raise GuaranteeError(f"labels {sample.spans} with n 2", f"version {version}", f"{server}: {what}")
