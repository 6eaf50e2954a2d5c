"""Checks that refused takeovers do not change group, run and requests in flight. G6 calls it."""

from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import in_flight
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

JOIN = "/init_process_group"
UNSUPPORTED = "unsupported_backend"


async def refused_joins_keep_the_group(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that refused takeovers end no request and that the group still receives updates."""
    tokens = min(400, bench.context - 32)
    other = bench.trainer()
    joins = await other.join_requests(port=1, epoch=1, timeout_s=0.5)
    before = [(await server.contract()).run for server in bench.servers]
    async with in_flight(bench, 2, tokens) as tasks:
        for server, join in zip(bench.servers, joins, strict=True):
            await check_refused(
                server, BadRequest(JOIN, join | {"backend": "carrier-pigeon"}, 422, UNSUPPORTED)
            )
            await check_refused(server, never_forms(join))
        for server, task in tasks:
            sample = await task
            if sample.finish_reason == "abort":
                raise GuaranteeError(
                    "a request in flight ended with `abort`",
                    "its own end: the takeover was refused, and a refusal leaves the server as it was",
                    f"{server}: complete {sample.prompt_token_ids}, and meanwhile refuse {joins[0]}",
                )
    after = [(await server.contract()).run for server in bench.servers]
    if before != after:
        raise GuaranteeError(
            f"/contract.run was {before}, and is {after}",
            "the same: the takeover was refused",
            f"POST {JOIN} {joins[0]}, where nobody listens",
        )
    version = trainer.version + 1
    await trainer.publish(version, bench.weights(version))  # in the group that existed before
    for server in bench.servers:
        await bench.check_content(server, bench.weights(version), version, "refused joins, then an update")


def never_forms(join: dict[str, Any]) -> BadRequest:
    return BadRequest(JOIN, join, 504, "rendezvous_timeout")
