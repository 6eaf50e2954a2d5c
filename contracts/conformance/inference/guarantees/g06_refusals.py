"""G6: every bad request is refused with its code, and changes nothing."""

from contracts.conformance.inference.bad_fields import bad_fields
from contracts.conformance.inference.bad_manifests import bad_updates
from contracts.conformance.inference.bad_requests import (
    all_refused,
    bad_generations,
    bad_joins,
    refused,
    undeclared_requests,
)
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.context_edge import check_context_edge, check_vocabulary_edge
from contracts.conformance.inference.control_states import met_while_receiving
from contracts.conformance.inference.forming_groups import refused_while_joining
from contracts.conformance.inference.limits import SINCE, beyond_limits, check_bad_http
from contracts.conformance.inference.neutral_values import check_neutral_values
from contracts.conformance.inference.recovery import ready_to_join
from contracts.conformance.inference.refused_joins import refused_joins_keep_the_group
from contracts.conformance.inference.retries import (
    call_off_too_early,
    call_offs_repeat,
    joins_repeat,
    updates_repeat,
)
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.inference.unchanged import check_same_state, state_of
from contracts.conformance.verdicts import GuaranteeError
from contracts.limits import Limits


async def refusals(bench: Bench) -> str:
    """Sends bad requests and retries, and checks the codes and that completions do not change."""
    tried = 0
    async with bench.new_run() as trainer:
        before = [await _greedy(bench, server) for server in bench.servers]
        await joins_repeat(trainer)
        await refused_while_joining(bench, trainer)
        for index, server in enumerate(bench.servers):
            tried += await _all_refused(bench, trainer, index)
            await _unknown_updates(server)
        for server, greedy in zip(bench.servers, before, strict=True):
            _unchanged(greedy, await _greedy(bench, server), server)
        await refused_joins_keep_the_group(bench, trainer)
        await met_while_receiving(bench, trainer)
        await updates_repeat(bench, trainer)
        await call_offs_repeat(bench, trainer)
        for server in bench.servers:
            await ready_to_join(bench, server, "an update is called off")
        await trainer.join()
        version = trainer.version + 2  # the version between them was aborted
        await call_off_too_early(trainer, version)
        await trainer.publish(version, bench.weights(version))
        for server in bench.servers:
            what = f"refuse bad requests, publish version {version}"
            await bench.check_content(server, bench.weights(version), version, what)
    return f"{tried} bad requests, each with its code; greedy answers unchanged; retries repeat their answer"


async def _all_refused(bench: Bench, trainer: TrainerPeer, index: int) -> int:
    """Sends every bad request to one server. Returns their number."""
    server = bench.servers[index]
    contract = await server.contract()
    join = (await trainer.join_requests(port=1, epoch=trainer.epoch + 1, timeout_s=0.5))[index]
    version = trainer.version + 1
    update = trainer.update_request(version, bench.weights(version))
    bad = [*bad_joins(join), *bad_updates(update), *await undeclared_requests(server, join, update)]
    bad += await bad_generations(bench, server)
    if contract.contract >= SINCE:
        bad += beyond_limits(contract.limits or Limits(), contract.model, join)
    state = await state_of(server)
    for request in bad:
        await refused(server, request)
    await check_same_state(server, state, f"{len(bad)} bad requests were refused")
    fields = bad_fields(bench, contract, join, update)
    for path in dict.fromkeys(request.path for request in fields):
        of_the_route = [request for request in fields if request.path == path]
        await all_refused(server, of_the_route)
        await check_same_state(server, state, f"{len(of_the_route)} requests to {path} were refused")
    bad += fields
    tried = len(bad) + await check_context_edge(bench, server) + await check_vocabulary_edge(bench, server)
    if contract.contract >= SINCE:
        tried += await check_bad_http(server, contract)
        await check_neutral_values(bench, server)
    await check_same_state(server, state, "malformed requests were refused")
    return tried


async def _unknown_updates(server: Server) -> None:
    """Checks the responses to status requests for updates that were never requested."""
    for version, codes in (("999999", {404}), ("0", {404}), ("x", {404, 422}), ("-1", {404, 422})):
        status, body = await server.get(f"/weight_update/{version}")
        if status not in codes or "error" not in body:
            raise GuaranteeError(
                f"GET /weight_update/{version}: {status} {body}", f"{codes}: never requested", "ask for it"
            )
    status, body = await server.get("/weight_update/1?wait_s=soon")
    if (status, body.get("error", {}).get("code")) != (422, "invalid_request"):
        raise GuaranteeError(f"GET /weight_update/1?wait_s=soon: {status} {body}", "422", "ask for it")


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
