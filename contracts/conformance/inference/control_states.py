"""Control requests during an update, which must get their responses and not affect it. G6 uses them."""

import asyncio
from typing import Any

from contracts.conformance.inference.bad_manifests import PATH
from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.http_client import describe_request
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.refused_joins import JOIN, UNSUPPORTED, never_forms
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

ABORT = "/abort_weight_update"
BUSY = frozenset({"update_in_progress", "joining"})  # a waiting join may count as an update or as a join
STALE = frozenset({"stale_epoch"})
PATIENCE_S = 30.0  # between two buckets, for the requests between them on a slow machine
SOON_S = 5.0  # time in which `/contract` must report receiving after the 202


async def requests_while_receiving(bench: Bench, trainer: TrainerPeer) -> None:
    """Publishes the next version while other requests arrive, none of which may affect the update.

    These include joins of the same epoch, of another run, and of the next epoch, which waits.
    """
    version = trainer.version + 1
    weights = bench.weights(version)
    patience_s = max(PATIENCE_S, bench.settings.timeout_s)
    request = trainer.update_request(version, weights, timeout_s=patience_s)
    buckets = packed(weights, request["bucket_bytes"])
    joins = await trainer.join_requests(port=1, epoch=trainer.epoch + 1, timeout_s=0.5)
    await trainer.request_update(request)
    waiting: list[asyncio.Task[Any]] = []
    async with cancelling(waiting):
        for index, server in enumerate(bench.servers):
            await _check_receiving(server, trainer, version)
            for bad in [*_bad_joins(trainer, joins[index]), never_forms(joins[index])]:
                waiting.append(asyncio.create_task(check_refused(server, bad)))
            await _others_are_refused(server, trainer, request)
        first, *rest = buckets
        await _sent(trainer, [first], version)
        for server in bench.servers:
            await _others_are_refused(server, trainer, request)
            await _check_receiving(server, trainer, version)
        await trainer.request_update(request)  # a retry
        await _sent(trainer, rest, version)
        what = "requests that must wait or be refused arrive while the version is received"
        await trainer.wait_until_live(version, sum(bucket.nbytes for bucket in buckets), what)
        for answered in waiting:  # some may wait until the update ends
            await answered
    for server in bench.servers:
        await bench.check_content(server, weights, version, what)
        await _abort_when_live(server, trainer, version)


def _bad_joins(trainer: TrainerPeer, join: dict[str, Any]) -> list[BadRequest]:
    same = {"epoch": trainer.epoch, "group_name": "another", "takeover": False}
    return [
        BadRequest(JOIN, join | same, 409, "stale_epoch"),
        BadRequest(JOIN, join | {"run": "another", "takeover": False}, 409, "other_run"),
        BadRequest(JOIN, join | {"no_such_field": 1}, 422, "invalid_request"),
        BadRequest(JOIN, join | {"backend": "carrier-pigeon"}, 422, UNSUPPORTED),
    ]


async def _others_are_refused(server: Server, trainer: TrainerPeer, request: dict[str, Any]) -> None:
    """Sends requests that must not affect the update that `request` has started."""
    version = request["version"]
    unknown = [*request["parameters"], {"name": "model.nothing", "dtype": "float32", "shape": [3]}]
    name = {"run": trainer.run, "epoch": trainer.epoch, "version": version}
    for bad in (
        BadRequest(PATH, request | {"version": version + 1}, 409, "update_in_progress", or_codes=BUSY),
        BadRequest(PATH, request | {"kv_cache": "burn"}, 422, "unsupported_kv_cache", or_codes=BUSY),
        BadRequest(PATH, request | {"parameters": unknown}, 422, "unknown_parameter", or_codes=BUSY),
        BadRequest(PATH, request | {"run": "another"}, 409, "other_run", or_codes=BUSY),
        BadRequest(PATH, request | {"no_such_field": 1}, 422, "invalid_request", or_codes=BUSY),
        BadRequest(ABORT, name | {"run": "another"}, 409, "other_run"),
        BadRequest(ABORT, name | {"version": version + 7}, 404, "not_found"),
        BadRequest(ABORT, name | {"epoch": trainer.epoch + 1}, 404, "not_found", or_codes=STALE),
    ):
        await check_refused(server, bad)
    status, body = await server.get(f"/weight_update/{version + 7}")
    if status != 404:
        raise GuaranteeError(f"{status} {body}", "404: never requested", f"GET /weight_update/{version + 7}")


async def _check_receiving(server: Server, trainer: TrainerPeer, version: int) -> None:
    """Checks that `/contract` and the update's status report `receiving`, and not yet `live`."""

    async def receiving() -> bool:
        return (await server.contract()).weights.state == "receiving"

    if await poll(receiving, within_s=SOON_S) is None:
        raise GuaranteeError(
            f"/contract.weights is {(await server.contract()).weights} while version {version} is received",
            "state receiving, at the old version",
            f"{server}: request an update, send nothing more, and look",
        )
    contract = await server.contract()
    epoch = contract.group.epoch if contract.group else None
    _, status = await server.get(f"/weight_update/{version}")
    said = (contract.weights.state, contract.weights.version, contract.run, epoch, status.get("state"))
    expected = ("receiving", trainer.version, trainer.run, trainer.epoch, "receiving")
    if said != expected:
        raise GuaranteeError(
            f"/contract and /weight_update/{version} say {said}",
            f"{expected}: the update has not ended",
            f"{server}: request an update, send not all of it, and look",
        )


async def _abort_when_live(server: Server, trainer: TrainerPeer, version: int) -> None:
    """Checks that a live update can no longer be aborted."""
    name = {"run": trainer.run, "epoch": trainer.epoch, "version": version}
    status, body = await server.post(ABORT, name)
    if (status, body.get("state"), body.get("version")) != (200, "live", version):
        raise GuaranteeError(
            f"{status} {body}", "200 and its final status, which is live", describe_request(ABORT, name)
        )


async def _sent(trainer: TrainerPeer, buckets: list[Any], version: int) -> None:
    try:
        await trainer.send(buckets)
    except RuntimeError as error:
        raise GuaranteeError(
            f"the broadcast of version {version} broke: {error}",
            "the update goes on: what arrived meanwhile had to wait, or was refused",
            "request an update; then joins, updates and calls that are refused; then send its buckets",
        ) from error
