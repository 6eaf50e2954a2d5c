"""Checks `POST /leave_process_group`, by which servers leave a group before the trainer. G7 calls it."""

from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.http_client import describe_request
from contracts.conformance.inference.recovery import check_serving, restarts, restore_service
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

LEAVE = "/leave_process_group"
OTHER_RUN = "no-run-of-this-server"


async def leaves_when_asked(bench: Bench, run: TrainerPeer) -> None:
    """Checks that a server leaves its own group alone, between updates and during one, and is asked twice."""
    await run.publish(run.version + 1, bench.weights(run.version + 1))
    named = {"run": run.run, "epoch": run.epoch}
    for server in bench.servers:
        await check_refused(server, BadRequest(LEAVE, named | {"run": OTHER_RUN}, 409, "other_run"))
        await check_refused(server, BadRequest(LEAVE, named | {"epoch": run.epoch - 1}, 409, "stale_epoch"))
    await run.publish(run.version + 1, bench.weights(run.version + 1))  # the group stands
    await _leave(bench, run, "after an update")
    await restore_service(bench, run, "the servers left the group")
    await _leave(bench, run, "while an update waits for its first bucket", updating=True)
    await restore_service(bench, run, "the servers left the group during an update")


async def _leave(bench: Bench, run: TrainerPeer, when: str, updating: bool = False) -> None:
    version = run.version + 1
    request = run.update_request(version, bench.weights(version))
    if updating:
        await run.request_update(request)
    named = {"run": run.run, "epoch": run.epoch}
    for server in bench.servers:
        await _expect_left(server, named, True, when)
        if updating and not await restarts(server):
            await _expect_cancelled(server, version, when)
        if await restarts(server):
            continue
        if (group := (await server.contract()).group) is not None:
            raise GuaranteeError(f"/contract says {group}", "no group any more", f"{server}: leave {when}")
        newer = request | {"version": version + 1}  # an equal request would get the first answer again
        await check_refused(server, BadRequest("/request_weight_update", newer, 409, "no_group"))
        await _expect_left(server, named, False, f"{when}, a second time")
        await check_serving(bench, server, run.version, f"the server leaves the group {when}")


async def _expect_left(server: Server, named: dict[str, Any], left: bool, when: str) -> None:
    answer = await server.post(LEAVE, named)
    if answer[0] != 200 or answer[1].get("left") is not left:
        raise GuaranteeError(
            f"POST {LEAVE}: {answer}",
            f'200 {{"left": {str(left).lower()}}}',
            f"{server}: {describe_request(LEAVE, named)} {when}",
        )


async def _expect_cancelled(server: Server, version: int, when: str) -> None:
    status, body = await server.get(f"/weight_update/{version}")
    if status != 200 or (body.get("state"), body.get("touched")) != ("failed", False):
        raise GuaranteeError(
            f"/weight_update/{version}: {status} {body}",
            "failed, touched false: the answer comes after the update has ended",
            f"{server}: leave {when}",
        )
