"""Checks that updates are refused while a group is being joined. G6 uses it."""

import asyncio

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError
from contracts.weights import RendezvousStore

JOIN_TIMEOUTS_S = (1.0, 3.0, 10.0)  # of groups that never form


async def refused_while_joining(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that updates are refused while a group is being joined, whose rendezvous then times out.

    On a busy machine the join may not be visible before its timeout. Then tries a longer timeout.
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
    """Returns the last error code of each server for updates while a group is being joined."""
    store = RendezvousStore(bench.settings.address, 0, bench.settings.timeout_s)  # its rank 0 never joins
    requests = await trainer.join_requests(store.port, epoch=trainer.epoch + 1, timeout_s=timeout_s)
    joining = asyncio.create_task(trainer.post_each("/init_process_group", requests))
    update = trainer.update_request(2, bench.weights(2), epoch=trainer.epoch + 1)
    last: dict[Server, str | None] = {}
    async with cancelling([joining]):
        for server in bench.servers:
            while last.get(server) != "joining" and not joining.done():
                answer = await server.post("/request_weight_update", update)
                last[server] = answer[1].get("error", {}).get("code")
                await asyncio.sleep(0.01)
        for status, body in await joining:
            if (status, body.get("error", {}).get("code")) != (504, "rendezvous_timeout"):
                raise GuaranteeError(
                    f"{status} {body}", "504 rendezvous_timeout", "join a group that never forms"
                )
    return set(last.values())
