"""Requests while a version is being pulled, which must not delay generation or other routes, for G16."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.responsiveness import responsiveness, short_answer_s
from contracts.conformance.inference.server import poll
from contracts.conformance.inference.speed import check_speed, measure_speed
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.bench import StoreBench, new_store
from extensions.stored_weights.conformance.source import Source
from extensions.stored_weights.conformance.store import Offer

LONG_S = 600.0  # timeouts of a pull that is blocked
ANSWERS = 3  # short completions during a blocked pull
LATEST_S = 10.0  # limit of a short completion during a blocked pull,
FACTOR = 20.0  # or this factor times its duration on the idle server, if that is longer
CONTROL_S = 10.0  # limit of a response of /health and /contract
PULL_S = 60.0  # duration of a pull during which speed is measured


async def requests_beside_pulls(bench: Bench) -> str:
    """Blocks a pull, and checks that requests get responses. Then the version must become live."""
    async with new_store(bench) as at, at.sources(1) as (source,):
        await at.run.join_channel(at.store, [source], idle_timeout_s=LONG_S)
        await at.run.pull(at.offer(1), "pull version 1")
        limit = max(LATEST_S, FACTOR * (await responsiveness(bench)).idle_s)
        async with _held(at, source) as offer:
            for _ in range(ANSWERS):
                await _answered(bench, limit)
            await _control(at, offer)
        await at.run.is_live(offer, "hold a pull up, then let it go on")
        await at.serves(offer, "hold a pull up, then let it go on")
        await _called_off(at, source)
        if bench.settings.thorough:
            await _speed(at, source)
    return f"{ANSWERS} short completions were answered while a pull was held up"


@contextlib.asynccontextmanager
async def _held(at: StoreBench, source: Source) -> AsyncIterator[Offer]:
    """Requests the next version, whose files are sent only after the block."""
    offer = at.offer(at.run.version + 1)
    source.open.clear()
    source.met.clear()
    try:
        await at.run.request_update(at.run.channel_request(offer, timeout_s=LONG_S))
        limit = at.run.live_within_s
        if await poll(lambda: _is_set(source.met), limit) is None:
            raise GuaranteeError(
                f"no file of version {offer.version} was asked for within {limit:g} s",
                "a pull begins when it is requested",
                f"request version {offer.version}",
            )
        yield offer
    finally:
        source.open.set()


async def _is_set(event: asyncio.Event) -> bool:
    return event.is_set()


async def _answered(bench: Bench, limit: float) -> None:
    try:
        async with asyncio.timeout(limit):
            await short_answer_s(bench)
    except TimeoutError as error:
        raise GuaranteeError(
            f"a short completion had no answer within {limit:.0f} s while a version was pulled",
            "an answer as before: generation goes on until the version is applied",
            "hold the files of a version back, and complete a short prompt",
        ) from error


async def _control(at: StoreBench, offer: Offer) -> None:
    """Checks the servers' reports during a pull, and that they respond quickly."""
    for server in at.bench.servers:
        began = time.monotonic()
        ready = await server.ready()
        contract = await server.contract()
        seconds = time.monotonic() - began
        channel = contract.channel
        target = channel.target if channel else None
        said = (ready, contract.weights.version, target)
        if said != (True, at.run.version, offer.version) or seconds > CONTROL_S:
            raise GuaranteeError(
                f"{server}: ready {ready}, {contract.weights}, {channel}, after {seconds:.1f} s",
                f"ready, version {at.run.version}, and version {offer.version} as the target, at once",
                f"hold the files of version {offer.version} back, and look at /health and /contract",
            )


async def _called_off(at: StoreBench, source: Source) -> None:
    """Cancels a blocked pull. The next version must become live."""
    async with _held(at, source) as offer:
        body = {"run": at.run.run, "epoch": at.run.epoch, "version": offer.version}
        answers = await at.run.post_each("/abort_weight_update", [body] * len(at.bench.servers))
        for server, (status, answer) in zip(at.bench.servers, answers, strict=True):
            ended = (status, answer.get("state"), answer.get("touched"))
            if ended != (200, "failed", False):
                raise GuaranteeError(
                    f"{server}: POST /abort_weight_update: {status} {answer}",
                    "200, failed, and nothing touched",
                    f"hold the files of version {offer.version} back, and call it off",
                )
    following = at.offer(offer.version + 1)
    what = f"call the pull of version {offer.version} off, then pull version {following.version}"
    await at.run.pull(following, what)
    await at.serves(following, what)


async def _speed(at: StoreBench, source: Source) -> None:
    speeds = [await measure_speed(server, at.bench.reference) for server in at.bench.servers]
    offer = at.offer(at.run.version + 1)
    source.pace = at.store.object_bytes(offer.full) / PULL_S
    await at.run.request_update(at.run.channel_request(offer, timeout_s=LONG_S))
    for server, speed in zip(at.bench.servers, speeds, strict=True):
        if speed:
            await check_speed(server, at.bench.reference, speed, "a pull had begun")
    source.pace = None
