"""Groups and runs that newer ones replace, while they form and while weights are received. G7 calls it.

A replaced request must be answered at once, and have no further effect.
"""

import asyncio

from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.limits import SINCE
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.questions import LONG_S, SOON_S
from contracts.conformance.inference.repeated_versions import OTHER
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError
from contracts.weights import RendezvousStore

PATH = "/init_process_group"


async def newer_epoch_replaces_a_forming_group(bench: Bench, run: TrainerPeer) -> None:
    """Checks that a join does not wait for the join of an older epoch, whose group never forms.

    While the older group forms, another join of its epoch must be refused.
    """
    store = RendezvousStore(bench.settings.address, 0, LONG_S)
    strict = await _since(bench)
    run.leave()
    run.epoch += 1
    requests = await run.join_requests(store.port, timeout_s=LONG_S)
    forming = asyncio.create_task(run.post_each(PATH, requests))
    async with cancelling([forming]):
        for server, request in zip(bench.servers, requests, strict=True):
            await _is_joining(bench, run, server)
            if not strict:
                continue
            other = request | {"group_name": "another", "timeout_s": bench.settings.timeout_s}
            await check_refused(server, BadRequest(PATH, other, 409, "stale_epoch"))
        if forming.done():
            raise _not_replaced(run.epoch, forming.result(), "no answer until its group forms")
        await run.join()
        await asyncio.wait([forming], timeout=SOON_S)
        answers = forming.result() if forming.done() else []
        codes = {(status, body.get("error", {}).get("code")) for status, body in answers}
        if not answers or (strict and codes != {(409, "stale_epoch")}) or (200, None) in codes:
            expected = f"409 stale_epoch, as soon as epoch {run.epoch} has replaced it"
            raise _not_replaced(run.epoch - 1, answers, expected)
    await run.publish(run.version + 1, bench.weights(run.version + 1))


async def _since(bench: Bench) -> bool:
    return all([(await server.contract()).contract >= SINCE for server in bench.servers])


async def _is_joining(bench: Bench, run: TrainerPeer, server: Server) -> None:
    update = run.update_request(run.version + 1, bench.weights(run.version + 1))
    code = None
    deadline = asyncio.get_running_loop().time() + SOON_S
    while code != "joining":
        if asyncio.get_running_loop().time() > deadline:
            raise GuaranteeError(
                f"{server}: an update while a group is being joined: {code}",
                "409 joining",
                f"POST {PATH} for a group that never forms, then request an update in it",
            )
        code = (await server.post("/request_weight_update", update))[1].get("error", {}).get("code")
        await asyncio.sleep(0.01)


def _not_replaced(epoch: int, answers: object, expected: str) -> GuaranteeError:
    return GuaranteeError(
        f"the join of epoch {epoch} ended with {answers or 'no answer'}",
        expected,
        "join a group that never forms, another of the same epoch, then the next epoch",
    )


async def runs_in_a_row(bench: Bench, runs: int) -> None:
    """Lets several runs take over one after another, each with other content for the same version."""
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


async def takeover_aborts_update(bench: Bench) -> None:
    """Checks that a run can take over while an update with a long timeout is received.

    The update must touch nothing, and must be unknown to the new run.
    """
    if not await _since(bench):
        return
    what = "a run takes over while a version of the old one is received"
    async with bench.new_run() as run:
        version = run.version + 1
        staged = "staged" in await bench.offered("capabilities")
        receive = "staged" if staged else "paused"
        patience_s = 5 * bench.settings.patience_s  # longer than a join waits
        request = run.update_request(version, bench.weights(version), timeout_s=patience_s, receive=receive)
        await run.request_update(request)
        if staged:  # otherwise a bucket may be applied when it arrives, and the weights be lost
            await run.send(packed(bench.weights(version), request["bucket_bytes"])[:1])
        other = bench.trainer()
        try:
            await other.join()
            for server in bench.servers:
                await bench.check_content(server, bench.weights(run.version), run.version, what)
                await _is_forgotten(server, run.version, what)
                await _is_forgotten(server, version, what)
            await other.publish(version, bench.weights(OTHER + version))
            for server in bench.servers:
                await bench.check_content(server, bench.weights(OTHER + version), version, what)
        finally:
            other.leave()


async def _is_forgotten(server: Server, version: int, what: str) -> None:
    status, body = await server.get(f"/weight_update/{version}")
    if status != 404:
        raise GuaranteeError(
            f"GET /weight_update/{version}: {status} {body}",
            "404 not_found: this run has requested no such version",
            f"{server}: {what}, and ask for version {version}",
        )
