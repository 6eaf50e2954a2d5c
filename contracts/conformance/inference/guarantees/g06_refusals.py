"""G6: every bad request is refused with its code, and changes nothing."""

import asyncio

from contracts.conformance.inference.bad_requests import (
    BadRequest,
    bad_generations,
    bad_joins,
    bad_updates,
    undeclared_requests,
)
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.limits import SINCE, beyond_limits, check_bad_http
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.recovery import check_serving
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Answer, Server, describe_request
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError
from contracts.limits import Limits
from contracts.weights import WeightStore


async def refusals(bench: Bench) -> str:
    """Sends bad requests and retries, and checks the codes and that completions stay the same."""
    tried = 0
    async with bench.new_run() as trainer:
        before = [await _greedy(bench, server) for server in bench.servers]
        await _retried(trainer)
        await _joining(bench, trainer)
        for index, server in enumerate(bench.servers):
            join = (await trainer.join_requests(port=1, epoch=trainer.epoch + 1))[index]
            update = trainer.update_request(2, bench.weights(2))
            bad = [*bad_joins(join), *bad_updates(update), *await undeclared_requests(server, join, update)]
            bad += await bad_generations(bench, server)
            contract = await server.contract()
            if contract.contract >= SINCE:
                tried += await check_bad_http(server, contract)
                bad += beyond_limits(contract.limits or Limits(), contract.model, join)
            for request in bad:
                await _refused(server, request)
            tried += len(bad)
            await _unknown_update(server)
        for server, greedy in zip(bench.servers, before, strict=True):
            _unchanged(greedy, await _greedy(bench, server), server)
        await _while_receiving(bench, trainer)
        await trainer.join()
        await trainer.publish(2, bench.weights(2))
        await trainer.request_update(trainer.update_request(2, bench.weights(2)))  # a late retry
        await trainer.publish(3, bench.weights(3))  # possible only if version 2 was not received again
        for server in bench.servers:
            await bench.check_content(server, bench.weights(3), 3, "refuse bad requests, publish version 3")
    return f"{tried} bad requests, each with its code; greedy answers unchanged; retries repeat their answer"


async def _refused(server: Server, bad: BadRequest) -> None:
    status, body = await server.post(bad.path, bad.body)
    error = body.get("error", {})
    if (status, error.get("code")) == (bad.status, bad.code) and bad.named in error.get("message", ""):
        return
    if bad.path == "/request_weight_update" and status == 202:
        await server.post("/abort_weight_update", {k: bad.body[k] for k in ("run", "epoch", "version")})
    names = f", with a message that names {bad.named}" if bad.named else ""
    raise GuaranteeError(
        f"{status} {str(body)[:300]}", f"{bad.status} {bad.code}{names}", describe_request(bad.path, bad.body)
    )


async def _retried(trainer: TrainerPeer) -> None:
    """Checks that an HTTP retry repeats the first response."""
    path = "/init_process_group"
    for answer, request in zip(await trainer.post_each(path, trainer.joined), trainer.joined, strict=True):
        if answer[0] != 200:
            raise GuaranteeError(
                f"the same join again: {answer}", "the first answer again", describe_request(path, request)
            )


async def _joining(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that updates are refused while a group is being joined.

    A join that fails must keep the old group.
    """
    store = WeightStore(bench.settings.address, 0, bench.settings.timeout_s)  # its rank 0 never joins
    requests = await trainer.join_requests(store.port, epoch=trainer.epoch + 1, timeout_s=1.0)
    joining = asyncio.create_task(trainer.post_each("/init_process_group", requests))
    update = trainer.update_request(2, bench.weights(2), epoch=trainer.epoch + 1)
    async with cancelling([joining]):
        for server in bench.servers:
            codes: set[str | None] = set()
            while "joining" not in codes:
                if joining.done():
                    raise GuaranteeError(
                        f"{server}: an update while a group is being joined: {codes}",
                        "409 joining",
                        "POST /init_process_group for a group that never forms, then request an update in it",
                    )
                answer = await server.post("/request_weight_update", update)
                codes.add(answer[1].get("error", {}).get("code"))
        for status, body in await joining:
            if (status, body.get("error", {}).get("code")) != (504, "rendezvous_timeout"):
                raise GuaranteeError(
                    f"{status} {body}", "504 rendezvous_timeout", "join a group that never forms"
                )


async def _unknown_update(server: Server) -> None:
    status, body = await server.get("/weight_update/999999")
    if status != 404:
        raise GuaranteeError(
            f"GET /weight_update/999999: {status} {body}", "404: never requested", "ask for it"
        )


async def _while_receiving(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks requests that arrive while an update is received: a retry is accepted, another update refused.

    Cancelling the update must leave everything as it was.
    """
    weights = bench.weights(2)
    request = trainer.update_request(2, weights)
    await trainer.request_update(request)
    await trainer.request_update(request)
    name = {"run": trainer.run, "epoch": trainer.epoch, "version": 2}
    for server in bench.servers:
        other = BadRequest("/request_weight_update", request | {"version": 3}, 409, "update_in_progress")
        await _refused(server, other)
    for server in bench.servers:
        answers: list[Answer] = [await server.post("/abort_weight_update", name) for _ in range(2)]
        for status, body in answers:
            if status != 200 or (body.get("state"), body.get("touched")) != ("failed", False):
                raise GuaranteeError(
                    f"POST /abort_weight_update: {status} {body}",
                    "200, failed, touched false: nothing had been sent",
                    f"{server}: request version 2, send nothing, call it off, twice",
                )
        await check_serving(bench, server, 1, "version 2 is requested and called off")
        gone = BadRequest("/request_weight_update", trainer.update_request(3, weights), 409, "no_group")
        await _refused(server, gone)


async def _greedy(bench: Bench, server: Server) -> Sample:
    return await server.complete(bench.reference.prompt(12), SHORT, temperature=0)


def _unchanged(before: Sample, after: Sample, server: Server) -> None:
    same = before.token_ids == after.token_ids and before.spans == after.spans
    if same and max(abs(a - b) for a, b in zip(before.logprobs, after.logprobs, strict=True)) <= 1e-5:
        return
    raise GuaranteeError(
        f"the greedy answer changed: {before.token_ids} {before.spans} to {after.token_ids} {after.spans}",
        "equal ids, log-probabilities within 1e-5: a refusal changes nothing",
        f"{server}: send requests that are refused, complete {before.prompt_token_ids} before and after",
    )
