"""G6: every bad request is refused with its code, and changes nothing."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from contracts.conformance.inference.bad_fields import bad_fields
from contracts.conformance.inference.bad_manifests import bad_updates
from contracts.conformance.inference.bad_requests import (
    bad_generations,
    bad_joins,
    check_all_refused,
    check_each_refused,
    undeclared_requests,
)
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.context_edge import check_context_edge, check_vocabulary_edge
from contracts.conformance.inference.control_states import requests_while_receiving
from contracts.conformance.inference.forming_groups import refused_while_joining
from contracts.conformance.inference.limits import SINCE, beyond_limits, check_bad_http
from contracts.conformance.inference.neutral_values import check_neutral_values
from contracts.conformance.inference.recovery import ready_to_join
from contracts.conformance.inference.refused_joins import refused_joins_keep_the_group
from contracts.conformance.inference.retries import (
    abort_too_early,
    aborts_repeat,
    joins_repeat,
    updates_repeat,
)
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.inference.unchanged import check_same_state, state_of
from contracts.conformance.verdicts import GuaranteeError
from contracts.limits import Limits


async def joins(bench: Bench) -> str:
    """Repeats a join, and requests updates while a group is being joined."""
    trainer = await bench.run()
    await joins_repeat(trainer)
    await refused_while_joining(bench, trainer)
    return "joins repeat their answer"


async def requests(bench: Bench) -> str:
    """Sends bad joins, updates and generations, and checks the codes."""
    tried = 0
    trainer = await bench.run()
    for index, server in enumerate(bench.servers):
        async with _unchanged(bench, server, "bad requests were refused"):
            contract = await server.contract()
            join, update = await _control_requests(bench, trainer, index)
            bad = [*bad_joins(join), *bad_updates(update), *await undeclared_requests(server, join, update)]
            bad += await bad_generations(bench, server)
            if contract.contract >= SINCE:
                bad += beyond_limits(contract.limits or Limits(), contract.model, join)
            await check_each_refused(server, bad)
            await _unknown_updates(server)
            tried += len(bad)
    return f"{tried} bad requests, each with its code"


async def values(bench: Bench) -> str:
    """Sends wrong values of every field to every route, and checks the codes."""
    tried = 0
    trainer = await bench.run()
    for index, server in enumerate(bench.servers):
        contract = await server.contract()
        bad = bad_fields(bench, contract, *await _control_requests(bench, trainer, index))
        for path in dict.fromkeys(request.path for request in bad):
            of_the_route = [request for request in bad if request.path == path]
            async with _unchanged(bench, server, f"{len(of_the_route)} requests to {path} were refused"):
                await check_all_refused(server, of_the_route)
        if contract.contract >= SINCE:
            await check_neutral_values(bench, server)
        tried += len(bad)
    return f"{tried} wrong values"


async def edges(bench: Bench) -> str:
    """Sends requests at the limits of the context and of the vocabulary."""
    tried = 0
    await bench.run()
    for server in bench.servers:
        async with _unchanged(bench, server, "requests beyond the context and the vocabulary were refused"):
            tried += await check_context_edge(bench, server) + await check_vocabulary_edge(bench, server)
    return f"{tried} beyond context and vocabulary"


async def http(bench: Bench) -> str:
    """Sends malformed HTTP requests, and checks the codes."""
    tried = 0
    await bench.run()
    for server in bench.servers:
        contract = await server.contract()
        if contract.contract >= SINCE:
            async with _unchanged(bench, server, "malformed requests were refused"):
                tried += await check_bad_http(server, contract)
    return f"{tried} malformed; greedy answers unchanged"


async def group(bench: Bench) -> str:
    """Refuses takeovers while requests run, and publishes in the group from before them."""
    await refused_joins_keep_the_group(bench, await bench.run())
    return "the group outlives refused joins"


async def receiving(bench: Bench) -> str:
    """Publishes a version while other requests arrive, none of which may affect the update."""
    await requests_while_receiving(bench, await bench.run())
    return "an update outlives refused requests"


async def retries(bench: Bench) -> str:
    """Repeats updates and aborts, and publishes afterwards."""
    trainer = await bench.run()
    await updates_repeat(bench, trainer)
    await aborts_repeat(bench, trainer)
    for server in bench.servers:
        await ready_to_join(bench, server, "an update is called off")
    await trainer.join()
    version = trainer.version + 2  # the version between them was aborted
    await abort_too_early(trainer, version)
    await trainer.publish(version, bench.weights(version))
    for server in bench.servers:
        what = f"refuse bad requests, publish version {version}"
        await bench.check_content(server, bench.weights(version), version, what)
    return "updates and aborts repeat their answers"


PARTS = {
    "joins": joins,
    "requests": requests,
    "values": values,
    "edges": edges,
    "http": http,
    "group": group,
    "receiving": receiving,
    "retries": retries,
}


async def _control_requests(
    bench: Bench, trainer: TrainerPeer, index: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a valid join and a valid update for one server."""
    join = (await trainer.join_requests(port=1, epoch=trainer.epoch + 1, timeout_s=0.5))[index]
    version = trainer.version + 1
    return join, trainer.update_request(version, bench.weights(version))


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


@contextlib.asynccontextmanager
async def _unchanged(bench: Bench, server: Server, what: str) -> AsyncIterator[None]:
    """Checks that a block of refused requests, described by `what`, changes neither state nor completions."""
    state = await state_of(server)
    before = await _greedy(bench, server)
    yield
    await check_same_state(server, state, what)
    after = await _greedy(bench, server)
    same = before.token_ids == after.token_ids and before.spans == after.spans
    if same and max(abs(a - b) for a, b in zip(before.logprobs, after.logprobs, strict=True)) <= 1e-5:
        return
    raise GuaranteeError(
        f"the greedy answer changed: {before.token_ids} {before.spans} to {after.token_ids} {after.spans}",
        "equal ids, log-probabilities within 1e-5: a refusal changes nothing",
        f"{server}: send requests that are refused, complete {before.prompt_token_ids} before and after",
    )


async def _greedy(bench: Bench, server: Server) -> Sample:
    return await server.complete(bench.reference.prompt(12), SHORT, temperature=0)
