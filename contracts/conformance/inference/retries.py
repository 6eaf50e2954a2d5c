"""Checks that repeated requests get the first response again, and have no further effect. G6 calls it."""

from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.http_client import Answer, describe_request
from contracts.conformance.inference.recovery import check_serving, restarts
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError


async def joins_repeat(trainer: TrainerPeer) -> None:
    """Checks that a repeated join gets the first response."""
    path = "/init_process_group"
    for answer, request in zip(await trainer.post_each(path, trainer.joined), trainer.joined, strict=True):
        if answer[0] != 200:
            raise GuaranteeError(
                f"the same join again: {answer}", "the first answer again", describe_request(path, request)
            )


async def updates_repeat(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that repeated requests for a live update get 202, and that nothing is received again."""
    version = trainer.version + 1
    weights = bench.weights(version)
    await trainer.publish(version, weights)
    for _ in range(2):
        await trainer.request_update(trainer.update_request(version, weights))
        await joins_repeat(trainer)
    await trainer.publish(version + 1, bench.weights(version + 1))  # fails if another update is in progress
    await trainer.request_update(trainer.update_request(version, weights))  # older than the live one
    for server in bench.servers:
        what = f"publish versions {version} and {version + 1}, and request version {version} again"
        await bench.check_content(server, bench.weights(version + 1), version + 1, what)


async def abort_too_early(trainer: TrainerPeer, version: int) -> None:
    """Checks that the abort of a version that was never requested is refused."""
    body = {"run": trainer.run, "epoch": trainer.epoch, "version": version}
    for server in trainer.servers:
        await check_refused(server, BadRequest("/abort_weight_update", body, 404, "not_found"))


async def aborts_repeat(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that a repeated abort gets the first response, and changes nothing except the group."""
    version = trainer.version + 1
    weights = bench.weights(version)
    request = trainer.update_request(version, weights)
    await trainer.request_update(request)
    await trainer.request_update(request)
    name = {"run": trainer.run, "epoch": trainer.epoch, "version": version}
    fresh = False
    for server in bench.servers:
        answers: list[Answer] = [await server.post("/abort_weight_update", name)]
        restarted = await restarts(server)  # the server then no longer knows the update
        if not restarted:
            answers.append(await server.post("/abort_weight_update", name))
            answers.append(await server.get(f"/weight_update/{version}"))
        for status, body in answers:
            if status != 200 or (body.get("state"), body.get("touched")) != ("failed", False):
                raise GuaranteeError(
                    f"POST /abort_weight_update: {status} {body}",
                    "200, failed, touched false: nothing had been sent",
                    f"{server}: request version {version}, send nothing, call it off, twice",
                )
        if restarted:
            fresh = True
            continue
        await check_serving(bench, server, trainer.version, f"version {version} is requested and called off")
        after = trainer.update_request(version + 1, weights)
        await check_refused(server, BadRequest("/request_weight_update", after, 409, "no_group"))
    if fresh:
        return
    await trainer.request_update(request)  # the first response again, although there is no group
    for server in bench.servers:
        contract = await server.contract()
        if contract.group is not None or contract.weights.state != "live":
            raise GuaranteeError(
                f"{contract.group}, {contract.weights}",
                f"no group, and version {trainer.version} live: the update was called off",
                f"{server}: call version {version} off, request it again, and look at /contract",
            )
