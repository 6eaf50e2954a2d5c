"""Status requests that wait for the end of a weight update. G7 sends them."""

import asyncio
import time

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.mixed_load import cancelling
from contracts.conformance.inference.recovery import restarts, restore_service
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

POLLS = 32
WAIT_S = 0.3
ANSWERED_MEANWHILE = 64  # other requests, one after another, which a busy machine delays too
SOON_S = 10.0  # far below LONG_S and far above the response time of a busy machine
LONG_S = 60.0


async def polls_end_in_time(bench: Bench, run: TrainerPeer) -> None:
    """Checks that status requests with `wait_s` are answered after that time or when the update ends.

    Many such requests at a time must not delay other requests.
    """
    version = run.version + 1
    weights = bench.weights(version)
    await run.request_update(run.update_request(version, weights, timeout_s=LONG_S))
    for server in bench.servers:
        await _waits_no_longer(server, f"/weight_update/{version}?wait_s={WAIT_S:g}")
    path = f"/weight_update/{version}?wait_s={LONG_S:g}"
    asked = [asyncio.create_task(server.get(path)) for server in bench.servers for _ in range(POLLS)]
    await asyncio.sleep(0.2)
    for server in bench.servers:
        await _answered_soon(server, "/health")
        await _answered_soon(server, "/contract")
    name = {"run": run.run, "epoch": run.epoch, "version": version}
    await _abort(bench, run, name)
    _, late = await asyncio.wait(asked, timeout=SOON_S)
    for task in late:
        task.cancel()
    answers = [task.result() for task in asked if task not in late]
    wrong = [answer for answer in answers if answer[1].get("state") != "failed"]
    if late or wrong:
        raise GuaranteeError(
            f"{len(late)} of {len(asked)} had no answer {SOON_S:g} s after the update had ended; {wrong[:1]}",
            "the end of the update, as soon as it has ended",
            f"GET {path}, {POLLS} times, then call version {version} off",
        )
    await _generates_soon(bench, run.version)
    await restore_service(bench, run, "an update that many wait for is called off")


async def _abort(bench: Bench, run: TrainerPeer, name: dict[str, object]) -> None:
    calls = asyncio.create_task(run.post_each("/abort_weight_update", [name] * len(bench.servers)))
    async with cancelling([calls]):
        answered, _ = await asyncio.wait([calls], timeout=bench.settings.grace_s)
        if not answered:
            raise GuaranteeError(
                f"no answer to POST /abort_weight_update within {bench.settings.grace_s:g} s",
                "an update that is being received is called off within ten seconds",
                f"request version {name['version']}, send nothing, and call it off",
            )
        calls.result()


async def _generates_soon(bench: Bench, version: int) -> None:
    """Checks that generation continues right after an abort, except on servers whose engines restart."""
    what = f"request an update with timeout_s {LONG_S:g}, send nothing, call it off"
    checks = [
        asyncio.create_task(bench.check_content(server, bench.weights(version), version, what))
        for server in bench.servers
        if not await restarts(server)
    ]
    if not checks:
        return
    _, late = await asyncio.wait(checks, timeout=LONG_S / 2)
    for task in late:
        task.cancel()
    if late:
        raise GuaranteeError(
            f"{len(late)} servers gave no answer to POST /v1/completions within {LONG_S / 2:g} s",
            "generation goes on as soon as the update has ended",
            what,
        )
    for task in checks:
        task.result()


async def _waits_no_longer(server: Server, path: str) -> None:
    """Checks that a status request is answered after WAIT_S, while others keep the server busy."""
    asked = asyncio.create_task(_answered_soon(server, path, "receiving"))
    async with cancelling([asked]):
        await _answered_soon(server, "/health")  # ensures that the status request has arrived
        await asyncio.wait([asked], timeout=WAIT_S)
        answered = 0
        while answered < ANSWERED_MEANWHILE and not asked.done():
            await _answered_soon(server, "/health")
            answered += 1
        if not asked.done():
            raise GuaranteeError(
                f"GET {path}: no answer after {WAIT_S:g} s, in which {answered} other requests were answered",
                f"an answer after {WAIT_S:g} s at most",
                f"{server}: ask it while an update waits for its first bucket",
            )
        await asked


async def _answered_soon(server: Server, path: str, state: str | None = None) -> None:
    started = time.monotonic()
    asked = asyncio.create_task(server.get(path))
    done, _ = await asyncio.wait([asked], timeout=SOON_S)
    if not done or state not in (None, asked.result()[1].get("state")):
        asked.cancel()
        raise GuaranteeError(
            f"GET {path}: {asked.result() if done else 'no answer'} after {time.monotonic() - started:.1f} s",
            f"an answer in time{f', {state}' if state else ''}",
            f"{server}: ask it while an update waits for its first bucket",
        )
