"""G6: every bad request is refused with its code, and changes nothing."""

import asyncio
from typing import Any

from contracts.conformance.inference.bad_fields import bad_fields
from contracts.conformance.inference.bad_manifests import bad_updates
from contracts.conformance.inference.bad_requests import (
    BadRequest,
    all_refused,
    bad_generations,
    bad_joins,
    refused,
    undeclared_requests,
)
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.context_edge import check_context_edge, check_vocabulary_edge
from contracts.conformance.inference.control_states import met_while_receiving, refused_joins_keep_the_group
from contracts.conformance.inference.limits import SINCE, beyond_limits, check_bad_http
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.neutral_values import check_neutral_values
from contracts.conformance.inference.recovery import check_serving, ready_to_join, restarts
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Answer, Server, describe_request
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError
from contracts.limits import Limits
from contracts.weights import WeightStore

JOIN_TIMEOUTS_S = (1.0, 3.0, 10.0)  # of groups that never form


async def refusals(bench: Bench) -> str:
    """Sends bad requests and retries, and checks the codes and that completions stay the same."""
    tried = 0
    async with bench.new_run() as trainer:
        before = [await _greedy(bench, server) for server in bench.servers]
        await _retried(trainer)
        await _joining(bench, trainer)
        for index, server in enumerate(bench.servers):
            tried += await _all_refused(bench, trainer, index)
            await _unknown_updates(server)
        for server, greedy in zip(bench.servers, before, strict=True):
            _unchanged(greedy, await _greedy(bench, server), server)
        await refused_joins_keep_the_group(bench, trainer)
        await met_while_receiving(bench, trainer)
        await _late_retry(bench, trainer)
        await _called_off(bench, trainer)
        for server in bench.servers:
            await ready_to_join(bench, server, "an update is called off")
        await trainer.join()
        version = trainer.version + 2  # the one between them was called off
        await trainer.publish(version, bench.weights(version))
        for server in bench.servers:
            what = f"refuse bad requests, publish version {version}"
            await bench.check_content(server, bench.weights(version), version, what)
    return f"{tried} bad requests, each with its code; greedy answers unchanged; retries repeat their answer"


async def _all_refused(bench: Bench, trainer: TrainerPeer, index: int) -> int:
    """Sends one server every bad request. Returns their number."""
    server = bench.servers[index]
    contract = await server.contract()
    join = (await trainer.join_requests(port=1, epoch=trainer.epoch + 1, timeout_s=0.5))[index]
    version = trainer.version + 1
    update = trainer.update_request(version, bench.weights(version))
    bad = [*bad_joins(join), *bad_updates(update), *await undeclared_requests(server, join, update)]
    bad += await bad_generations(bench, server)
    if contract.contract >= SINCE:
        bad += beyond_limits(contract.limits or Limits(), contract.model, join)
    state = await _state(server)
    for request in bad:
        await refused(server, request)
    await _same_state(server, state, f"{len(bad)} bad requests were refused")
    fields = bad_fields(bench, contract, join, update)
    for path in dict.fromkeys(request.path for request in fields):
        of_the_route = [request for request in fields if request.path == path]
        await all_refused(server, of_the_route)
        await _same_state(server, state, f"{len(of_the_route)} requests to {path} were refused")
    bad += fields
    tried = len(bad) + await check_context_edge(bench, server) + await check_vocabulary_edge(bench, server)
    if contract.contract >= SINCE:
        tried += await check_bad_http(server, contract)
        await check_neutral_values(bench, server)
    await _same_state(server, state, "malformed requests were refused")
    return tried


async def _state(server: Server) -> tuple[Any, ...]:
    """Returns what `/contract` says of run, group and weights."""
    contract = await server.contract()
    return contract.run, contract.group, contract.weights


async def _same_state(server: Server, before: tuple[Any, ...], what: str) -> None:
    after = await _state(server)
    if after != before or not await server.ready():
        raise GuaranteeError(
            f"/contract said {before}, and says {after}; ready: {await server.ready()}",
            "the same: a refusal changes nothing",
            f"{server}: {what}",
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
    """Checks that updates are refused while a group is being joined, whose join then fails.

    A busy machine may not show the join before its timeout; then a longer one is tried.
    """
    codes: set[str | None] = set()
    for timeout_s in JOIN_TIMEOUTS_S:
        codes = await _codes_while_joining(bench, trainer, timeout_s)
        if codes == {"joining"}:
            return
    raise GuaranteeError(
        f"an update while a group is being joined: {codes}",
        "409 joining",
        "POST /init_process_group for a group that never forms, then request an update in it",
    )


async def _codes_while_joining(bench: Bench, trainer: TrainerPeer, timeout_s: float) -> set[str | None]:
    """Returns the last code of each server for updates in a group that is being joined."""
    store = WeightStore(bench.settings.address, 0, bench.settings.timeout_s)  # its rank 0 never joins
    requests = await trainer.join_requests(store.port, epoch=trainer.epoch + 1, timeout_s=timeout_s)
    joining = asyncio.create_task(trainer.post_each("/init_process_group", requests))
    update = trainer.update_request(2, bench.weights(2), epoch=trainer.epoch + 1)
    last: dict[Server, str | None] = {}
    async with cancelling([joining]):
        for server in bench.servers:
            while last.get(server) != "joining" and not joining.done():
                answer = await server.post("/request_weight_update", update)
                last[server] = answer[1].get("error", {}).get("code")
        for status, body in await joining:
            if (status, body.get("error", {}).get("code")) != (504, "rendezvous_timeout"):
                raise GuaranteeError(
                    f"{status} {body}", "504 rendezvous_timeout", "join a group that never forms"
                )
    return set(last.values())


async def _unknown_updates(server: Server) -> None:
    """Checks what is answered to questions for updates that were never requested."""
    for version, codes in (("999999", {404}), ("0", {404}), ("x", {404, 422}), ("-1", {404, 422})):
        status, body = await server.get(f"/weight_update/{version}")
        if status not in codes or "error" not in body:
            raise GuaranteeError(
                f"GET /weight_update/{version}: {status} {body}", f"{codes}: never requested", "ask for it"
            )
    status, body = await server.get("/weight_update/1?wait_s=soon")
    if (status, body.get("error", {}).get("code")) != (422, "invalid_request"):
        raise GuaranteeError(f"GET /weight_update/1?wait_s=soon: {status} {body}", "422", "ask for it")


async def _late_retry(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that retries of what is live repeat their answers, and that nothing is received again."""
    version = trainer.version + 1
    weights = bench.weights(version)
    await trainer.publish(version, weights)
    for _ in range(2):
        await trainer.request_update(trainer.update_request(version, weights))
        await _retried(trainer)
    await trainer.publish(version + 1, bench.weights(version + 1))  # not while another is received
    await trainer.request_update(trainer.update_request(version, weights))  # older than the live one
    for server in bench.servers:
        what = f"publish versions {version} and {version + 1}, and request version {version} again"
        await bench.check_content(server, bench.weights(version + 1), version + 1, what)


async def _called_off(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that an update that is called off leaves everything as it was, but for the group."""
    version = trainer.version + 1
    weights = bench.weights(version)
    request = trainer.update_request(version, weights)
    await trainer.request_update(request)
    await trainer.request_update(request)
    name = {"run": trainer.run, "epoch": trainer.epoch, "version": version}
    for server in bench.servers:
        answers: list[Answer] = [await server.post("/abort_weight_update", name)]
        restarted = await restarts(server)  # then nothing is known of the update afterwards
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
            return
        await check_serving(bench, server, trainer.version, f"version {version} is requested and called off")
        after = trainer.update_request(version + 1, weights)
        await refused(server, BadRequest("/request_weight_update", after, 409, "no_group"))
    await trainer.request_update(request)  # the first answer again, and still no group to receive it in
    for server in bench.servers:
        contract = await server.contract()
        if contract.group is not None or contract.weights.state != "live":
            raise GuaranteeError(
                f"{contract.group}, {contract.weights}",
                f"no group, and version {trainer.version} live: the update was called off",
                f"{server}: call version {version} off, request it again, and look at /contract",
            )


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
