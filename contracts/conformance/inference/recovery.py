"""Checks a server after a failed weight update: a correct report, service, and a new epoch."""

import asyncio

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.limits import SINCE
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError
from contracts.inference import WeightUpdateStatus


async def check_failed_update(
    bench: Bench, server: Server, version: int, status: WeightUpdateStatus, receive: str, what: str
) -> None:
    """Checks that the server serves its weights if they are untouched, and otherwise reports unhealthy.

    A server whose engine restarts does neither; `restore_service` waits for it.
    """
    if status.state != "failed" or (receive == "staged" and status.touched):
        raise GuaranteeError(f"{server}: {status}", "failed; never touched when staged", what)
    if await restarts(server):
        return
    await _expect_reason(server, status, what)
    if not status.touched:
        contract = await server.contract()
        kept = (contract.weights.version, contract.weights.state) == (version, "live")
        if contract.group is not None or not kept:
            raise GuaranteeError(
                f"{server}: /contract says {contract.group} {contract.weights}",
                f"no group any more, weights live at version {version}",
                what,
            )
        await check_serving(bench, server, version, f"{what}, and touched is false")
        return
    model = (await server.contract()).model
    code, body = await server.post("/v1/completions", {"model": model, "prompt": [1], "max_tokens": 1})
    if await server.ready() or code != 503:
        raise GuaranteeError(
            f"{server}: touched, but /health is ready or a new request is {code} {body}",
            "503 unhealthy, until the next complete update",
            what,
        )


async def _expect_reason(server: Server, status: WeightUpdateStatus, what: str) -> None:
    """Checks that a failed update reports why it failed, and that any other update reports no error."""
    failed = status.state == "failed"
    if (await server.contract()).contract >= SINCE and bool(status.error) != failed:
        raise GuaranteeError(
            f"{server}: {status.state} with error {status.error!r}",
            "an error that says why" if failed else "error null: it did not fail",
            what,
        )


async def restarts(server: Server) -> bool:
    """Returns True if the server's engine is restarting, as it may after a failure. It forgets its run."""
    return (await server.get("/health"))[1].get("status") == "loading"


async def check_serving(bench: Bench, server: Server, version: int, what: str) -> None:
    """Checks that the server is ready and serves `version`."""
    if not await server.ready():
        raise GuaranteeError(f"{server}: {await server.get('/health')}", "ready, at the old version", what)
    await bench.check_content(server, bench.weights(version), version, what)


async def restore_service(bench: Bench, run: TrainerPeer, what: str) -> None:
    """Joins a new epoch, publishes a complete update and checks it. Waits for restarting engines first."""
    for server in bench.servers:
        await ready_to_join(bench, server, what)
    await run.join()
    version = run.version + 1
    await run.publish(version, bench.weights(version))
    for server in bench.servers:
        await check_serving(bench, server, version, f"{what}; a new epoch, version {version}")
        await _expect_reason(server, await run.outcome(server, version), f"{what}; then a complete update")


async def ready_to_join(bench: Bench, server: Server, what: str) -> None:
    """Waits until the server's engine is not restarting."""
    deadline = asyncio.get_running_loop().time() + bench.settings.restart_s
    while (health := await server.get("/health"))[1].get("status") == "loading":
        if asyncio.get_running_loop().time() > deadline:
            raise GuaranteeError(
                f"{server}: {health} for {bench.settings.restart_s:g} s",
                "an engine that restarts comes back",
                what,
            )
        await asyncio.sleep(0.2)
