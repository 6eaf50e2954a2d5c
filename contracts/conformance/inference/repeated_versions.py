"""Versions that are sent again with other content, and updates that end in unusual ways. G7 uses them.

A server that believes that it holds a version already would serve the wrong weights under the right label.
"""

import asyncio
import time

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.recovery import check_failed_update, restore_service
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer, packed
from contracts.conformance.verdicts import GuaranteeError
from contracts.weights import WeightStore

OTHER = 40  # added to a version's number: the seed of other content for it
POLLS = 32
SOON_S = 10.0  # far below LONG_S, and far above what an answer takes on a busy machine
LONG_S = 60.0


async def same_version_other_content(bench: Bench, run: TrainerPeer) -> None:
    """Sends the live version again to a rebuilt group, with the same and then with other content."""
    for seed in (run.version, run.version + OTHER):
        await run.join()
        await run.publish(run.version, bench.weights(seed))
        for server in bench.servers:
            what = f"version {run.version} is sent again in a new epoch, seed {seed}"
            await bench.check_content(server, bench.weights(seed), run.version, what)


async def runs_in_a_row(bench: Bench, runs: int) -> None:
    """Lets several runs take over one after the other, each with other content for the same version."""
    for number in range(runs):
        other = bench.trainer()
        weights = bench.weights(1 + OTHER * number)
        try:
            await other.join()
            await other.publish(1, weights)
            for server in bench.servers:
                what = f"run number {number + 1} takes over and publishes a version 1 of its own"
                await bench.check_content(server, weights, 1, what)
        finally:
            other.leave()


async def not_finite(bench: Bench, run: TrainerPeer) -> None:
    """Sends weights of which the last one is not finite. The update must fail, and say what it touched.

    An infinity is sent as bfloat16 where every server takes it, and a NaN as the others are.
    """
    accepted = await bench.offered("accepts_dtypes")
    await _not_finite(bench, run, torch.nan, None)
    await _not_finite(bench, run, torch.inf, torch.bfloat16 if "bfloat16" in accepted else None)


async def _not_finite(bench: Bench, run: TrainerPeer, value: float, dtype: torch.dtype | None) -> None:
    version = run.version + 1
    weights = {name: tensor.clone() for name, tensor in bench.weights(version).items()}
    last = list(weights)[-1]
    weights[last] = weights[last].to(dtype or weights[last].dtype)
    weights[last].view(-1)[-1] = value
    request = run.update_request(version, weights)
    await run.request_update(request)
    what = f"the last weight of an update is {value}, as {weights[last].dtype}"
    try:
        await run.send(packed(weights, request["bucket_bytes"]))
    except RuntimeError as error:
        raise GuaranteeError(f"the broadcast broke: {error}", "every bucket is received", what) from error
    for server, status in zip(bench.servers, await run.outcomes(version), strict=True):
        await check_failed_update(bench, server, run.version, status, "paused", what)
    await restore_service(bench, run, what)


async def polls_end_in_time(bench: Bench, run: TrainerPeer) -> None:
    """Checks that a question with `wait_s` is answered when that is over, or as soon as the update ends.

    Many questions at a time keep no other request waiting.
    """
    version = run.version + 1
    weights = bench.weights(version)
    await run.request_update(run.update_request(version, weights, timeout_s=LONG_S))
    for server in bench.servers:
        await _answered_soon(server, f"/weight_update/{version}?wait_s=0.3", "receiving")
    path = f"/weight_update/{version}?wait_s={LONG_S:g}"
    asked = [asyncio.create_task(server.get(path)) for server in bench.servers for _ in range(POLLS)]
    await asyncio.sleep(0.2)
    for server in bench.servers:
        await _answered_soon(server, "/health")
        await _answered_soon(server, "/contract")
    name = {"run": run.run, "epoch": run.epoch, "version": version}
    await run.post_each("/abort_weight_update", [name] * len(bench.servers))
    _, late = await asyncio.wait(asked, timeout=SOON_S)
    for task in late:
        task.cancel()
    answers = [task.result() for task in asked if task not in late]
    wrong = [answer for answer in answers if answer[1].get("state") != "failed"]
    if late or wrong:
        raise GuaranteeError(
            f"{len(late)} of {len(asked)} had no answer {SOON_S:g} s after the update had ended; {wrong[:1]}",
            "the end of the update, as soon as it has ended",
            f"GET {path}, {POLLS} times, then call version {version} off",
        )
    await _generates_soon(bench, run.version)
    await restore_service(bench, run, "an update that many wait for is called off")


async def _generates_soon(bench: Bench, version: int) -> None:
    """Checks that generation goes on after a call-off, and does not stand still until the timeout."""
    what = f"request an update with timeout_s {LONG_S:g}, send nothing, call it off"
    checks = [
        asyncio.create_task(bench.check_content(server, bench.weights(version), version, what))
        for server in bench.servers
    ]
    _, late = await asyncio.wait(checks, timeout=LONG_S / 2)
    for task in late:
        task.cancel()
    if late:
        raise GuaranteeError(
            f"{len(late)} servers gave no answer to POST /v1/completions within {LONG_S / 2:g} s",
            "generation goes on as soon as the update has ended",
            what,
        )
    for task in checks:
        task.result()


async def newer_epoch_replaces_a_forming_group(bench: Bench, run: TrainerPeer) -> None:
    """Checks that a join does not wait for the join of an older epoch, whose group never forms."""
    store = WeightStore(bench.settings.address, 0, LONG_S)
    run.leave()
    run.epoch += 1
    requests = await run.join_requests(store.port, timeout_s=LONG_S)
    forming = asyncio.create_task(run.post_each("/init_process_group", requests))
    await asyncio.wait([forming], timeout=0.5)
    await run.join()
    done, _ = await asyncio.wait([forming], timeout=SOON_S)
    statuses = [status for status, _ in forming.result()] if done else []
    if not done or 200 in statuses:
        forming.cancel()
        raise GuaranteeError(
            f"the join of epoch {run.epoch - 1} ended with {statuses or 'no answer'}",
            f"a refusal, once epoch {run.epoch} has replaced it",
            "join a group that never forms, then the next epoch",
        )
    await run.publish(run.version + 1, bench.weights(run.version + 1))


async def _answered_soon(server: Server, path: str, state: str | None = None) -> None:
    started = time.monotonic()
    asked = asyncio.create_task(server.get(path))
    done, _ = await asyncio.wait([asked], timeout=SOON_S)
    if not done or state not in (None, asked.result()[1].get("state")):
        asked.cancel()
        raise GuaranteeError(
            f"GET {path}: {asked.result() if done else 'no answer'} after {time.monotonic() - started:.1f} s",
            f"an answer in time{f', {state}' if state else ''}",
            f"{server}: ask it while an update waits for its first bucket",
        )
