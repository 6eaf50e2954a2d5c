"""Checks content after events that change more than the weights, and under load. G1 uses it.

Versions are sent again with other content, which reveals a server that compares only version numbers.
"""

import asyncio
import contextlib
from typing import Any

from contracts.conformance.inference.bench import FEW, Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.load import TOGETHER
from contracts.conformance.inference.mixed_load import mixed_load
from contracts.conformance.inference.recovery import ready_to_join, restarts
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

POLL_S = 0.02
OTHER = 1000  # added to a version to get the seed of other content for it


async def after_every_event(bench: Bench) -> float:
    """Checks content after a takeover, an abort and in a new epoch. Returns the largest error in nats."""
    worst = 0.0
    for version in (1, 0, 0):
        async with bench.new_run() as trainer:
            before = bench.weights(trainer.version)
            for sent in await _buckets_before_abort(bench):
                error, before = await _abort(bench, trainer, before, sent)
                worst = max(worst, error)
        worst = max(worst, await _taken_over(bench, version))
    return worst


async def _taken_over(bench: Bench, version: int) -> float:
    """Publishes other content as another run, with a version that may equal the live one."""
    weights = bench.weights(OTHER + version)
    trainer = bench.trainer()
    try:
        await trainer.join()
        await trainer.publish(version, weights)
        what = f"another run takes over and publishes version {version}, with other content"
        worst = await _check(bench, weights, version, what)
        await trainer.join()
        return max(worst, await _check(bench, weights, version, f"{what}; a new epoch, without an update"))
    finally:
        trainer.leave()


async def _buckets_before_abort(bench: Bench) -> tuple[int, ...]:
    return (0, 1) if "staged" in await bench.offered("capabilities") else (0,)


async def _abort(bench: Bench, trainer: TrainerPeer, before: Weights, sent: int) -> tuple[float, Weights]:
    """Aborts an update, and publishes other content as the same version in a new epoch.

    before: live weights. Returns the largest error in nats, and the weights that are live afterwards.
    """
    version = trainer.version + 1
    receive = "staged" if sent else "paused"
    request = trainer.update_request(version, bench.weights(version), receive=receive)
    await trainer.request_update(request)
    buckets = packed(bench.weights(version), request["bucket_bytes"])[:sent]
    await trainer.send(buckets)
    await _until_received(bench, version, sum(bucket.nbytes for bucket in buckets))
    named: dict[str, Any] = {name: request[name] for name in ("run", "epoch", "version")}
    for server in bench.servers:
        status, body = await server.post("/abort_weight_update", named)
        if status != 200 or body.get("state") != "failed" or body.get("touched") is not False:
            raise GuaranteeError(
                f"{server}: POST /abort_weight_update: {status} {body}",
                "200, failed, and nothing touched",
                f"request version {version}, send {sent} buckets, call it off",
            )
    what = f"version {version} is called off after {sent} buckets"
    worst = 0.0
    restarted = any([await restarts(server) for server in bench.servers])
    if not restarted:
        worst = await _check(bench, before, trainer.version, what)
    for server in bench.servers:
        await ready_to_join(bench, server, what)
    await trainer.join()
    if not restarted:
        worst = max(worst, await _check(bench, before, trainer.version, f"{what}; a new epoch"))
    other = bench.weights(OTHER + version)
    await trainer.publish(version, other)
    return max(worst, await _check(bench, other, version, f"{what}, then sent with other content")), other


async def _until_received(bench: Bench, version: int, size: int) -> None:
    """Waits until every server reports that it has received `size` bytes, or until a timeout."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(bench.settings.patience_s):
            for server in bench.servers:
                while (await server.get(f"/weight_update/{version}"))[1].get("bytes", size) < size:
                    await asyncio.sleep(POLL_S)


async def _check(bench: Bench, weights: Weights, version: int, what: str) -> float:
    return max([await bench.check_content(server, weights, version, what) for server in bench.servers])


async def under_load(bench: Bench, trainer: TrainerPeer) -> float:
    """Sends many requests right after `live`, while others run. Returns the largest error in nats."""
    worst = 0.0
    receives = await bench.receive_modes()
    for receive in receives if bench.settings.thorough else receives[-1:]:
        version = trainer.version + 1
        weights = bench.weights(version)
        async with mixed_load(bench, TOGETHER, bench.context // 2):
            await trainer.publish(version, weights, receive=receive)
            what = f"publish version {version} while {TOGETHER} requests run, then send {TOGETHER} at once"
            found = await asyncio.gather(
                *(_burst(bench, server, seed) for server in bench.servers for seed in range(TOGETHER))
            )
        for sample in found:
            bench.check_label(sample, version, what)
            worst = max(worst, bench.compare(sample, weights, what))
    return worst


async def _burst(bench: Bench, server: Server, seed: int) -> Sample:
    return await server.complete(bench.reference.prompt(8 + seed, seed=OTHER + seed), FEW, temperature=1)
