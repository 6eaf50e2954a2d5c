"""G19: a server that sleeps gives memory back; no token is lost, and none is sampled twice."""

import asyncio
from dataclasses import replace
from typing import Any

from contracts.conformance.inference.bad_requests import check_refused
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.mixed_load import cancelling
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.sleep_cycles import memory_stays_flat
from contracts.conformance.inference.sleep_refusals import bad_requests, invalid, refused_while_receiving
from contracts.conformance.inference.sleep_updates import all_asleep, woken_by_update
from contracts.conformance.inference.sleeps import (
    SLEEP,
    Held,
    attempts,
    check_awake,
    completed,
    put_to_sleep,
    running,
    sleep_request,
    wake,
)
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

TRIES = 4  # with other seeds
CYCLES = 12
MANY_CYCLES = 50


async def held(bench: Bench) -> str:
    """Sleeps twice with requests in flight, and compares them with requests that never slept."""
    trainer = await _declared(bench)
    held = sum([await _held_by(bench, trainer, server) for server in bench.servers])
    return f"{held} requests slept twice, and their tokens are those of requests that never did"


async def _held_by(bench: Bench, trainer: TrainerPeer, server: Server) -> int:
    """Returns how many requests slept twice, in the first attempt in which some did."""
    tries = 0
    for max_tokens, seed in attempts(bench):
        async with running(bench, server, max_tokens, seed) as requests:
            slept = await _sleeps_twice(bench, trainer, requests)
            samples = await completed(bench, requests, max_tokens)
        seeded = [i for i in slept if "seed" in requests.asked[i]]
        if not (seeded or slept and not any("seed" in fields for fields in requests.asked)):
            continue
        for fields, sample in zip(requests.asked, samples, strict=True):
            bench.check_label(sample, trainer.version, _where(server, fields))
            temperature = fields.get("temperature", 1.0)
            bench.compare(sample, bench.weights(trainer.version), _where(server, fields), temperature)
        fault = await _unequal(server, [(requests.asked[i], samples[i]) for i in seeded])
        tries += 1
        if fault is None:
            return len(slept)
        if tries == TRIES:
            raise fault
    raise AssertionError("an attempt returns or raises")


async def _sleeps_twice(bench: Bench, trainer: TrainerPeer, requests: Held) -> list[int]:
    """Returns the indices of the requests that were held in the second sleep.

    A server with one slot answers the new requests, which it got while it slept, after all others.
    """
    server = requests.server
    version = trainer.version
    slept: list[int] = []
    new: list[asyncio.Task[Sample]] = []
    async with cancelling(new):
        for _ in range(2):
            waiting = sum(not task.done() for task in new)
            held = (await put_to_sleep(trainer, server))["held"]
            new.append(asyncio.create_task(server.complete(bench.reference.prompt(6), SHORT)))
            await requests.check_quiet(held - waiting)
            if new[-1].done():
                raise GuaranteeError(
                    f"a new request was answered while the server slept: {new[-1].result()}",
                    "it waits until the server wakes",
                    f"{server}: POST {SLEEP}, then complete",
                )
            if held < requests.unfinished:
                raise GuaranteeError(
                    f"held is {held}, and {requests.unfinished} requests wait",
                    "held counts each choice that waits",
                    f"{server}: POST {SLEEP} while {requests.unfinished} requests run",
                )
            slept = [i for i, task in enumerate(requests.tasks) if not task.done()]
            await wake(trainer, server, version)
        for task in new:
            bench.check_label(await task, version, f"{server}: complete while it sleeps, then wake it")
    return slept


def _where(server: Server, fields: dict[str, Any]) -> str:
    return f"{server}: complete {fields}, and let it sleep twice meanwhile"


async def _unequal(server: Server, slept: list[tuple[dict[str, Any], Sample]]) -> GuaranteeError | None:
    """Returns the error if all of these differ from requests that never slept, else None.

    Rounding differs between batches, and may change a token.
    """
    fault = None
    for fields, sample in slept:
        plain = await server.complete(**fields)
        if plain.token_ids == sample.token_ids:
            return None
        fault = GuaranteeError(
            f"the seed gave {sample.token_ids}",
            f"{plain.token_ids}, as without the sleep",
            _where(server, fields),
        )
    return fault


async def update(bench: Bench) -> str:
    """Wakes a server that kept nothing, and one that kept its weights, by updates."""
    trainer = await _declared(bench)
    for keep in ("nothing", "weights"):
        for max_tokens, seed in attempts(bench):
            if await woken_by_update(bench, trainer, keep, max_tokens, seed):
                break
    return "new weights wake it, and their tokens are theirs alone"


async def abort(bench: Bench) -> str:
    """Sleeps with `requests: abort`, and by a takeover while it sleeps."""
    trainer = await _declared(bench)
    server = bench.servers[-1]
    for max_tokens, seed in attempts(bench):
        async with running(bench, server, max_tokens, seed) as requests:
            held = (await put_to_sleep(trainer, server, requests="abort"))["held"]
            aborted = await _aborted(bench, requests, "requests: abort")
            if held:
                raise GuaranteeError(f"held is {held}", "0: they were aborted", f"{server}: POST {SLEEP}")
        await wake(trainer, server, trainer.version)
        if aborted:
            break
    for max_tokens, seed in attempts(bench):
        async with running(bench, server, max_tokens, seed) as requests:
            if await all_asleep(bench, trainer, "nothing"):
                await _taken_over(bench, requests)
                break
            await trainer.publish(trainer.version + 1, bench.weights(trainer.version + 1))
    return "requests end with abort where that is asked for, and at a takeover"


async def _taken_over(bench: Bench, requests: Held) -> None:
    bench.end_run()
    trainer = bench.trainer()
    await trainer.join()
    try:
        if not await _aborted(bench, requests, "taken over in sleep"):
            raise GuaranteeError(
                "no request that was held ended with abort",
                "abort",
                f"{requests.server}: take it over in sleep",
            )
        await trainer.publish(1, bench.weights(1))
        for server in bench.servers:
            await bench.check_content(server, bench.weights(1), 1, "a takeover of a sleeping server")
    finally:
        trainer.leave()


async def _aborted(bench: Bench, requests: Held, what: str) -> bool:
    """Checks that the requests end. Returns True if one of them ends with `abort`."""
    await asyncio.wait(requests.tasks, timeout=bench.settings.grace_s)
    ends = [task.result().finish_reason if task.done() else "not ended" for task in requests.tasks]
    if "not ended" in ends:
        raise GuaranteeError(f"requests in flight: {ends}", "abort", f"{requests.server}: {what}")
    return "abort" in ends


async def refusals(bench: Bench) -> str:
    """Refuses bad requests, awake, asleep and while weights are received."""
    trainer = await _declared(bench)
    tried = 0
    for server in bench.servers:
        for bad in bad_requests(trainer):
            await check_refused(server, bad)
            await check_awake(server, f"{bad.path} {bad.body}")
            tried += 1
        await wake(trainer, server, trainer.version)  # awake already
        await put_to_sleep(trainer, server)
        for bad in [*bad_requests(trainer), invalid(SLEEP, sleep_request(trainer, keep="nothing"))]:
            # While it sleeps, another request to sleep is a fault of its own.
            await check_refused(server, replace(bad, or_codes=frozenset({"invalid_request"})))
            tried += 1
        await wake(trainer, server, trainer.version)
    await refused_while_receiving(bench, trainer)
    return f"{tried} bad requests change nothing"


async def cycles(bench: Bench) -> str:
    """Sleeps many times, and looks at the memory of the first and of the last time."""
    trainer = await _declared(bench)
    count = MANY_CYCLES if bench.settings.thorough else CYCLES
    await memory_stays_flat(bench, trainer, count)
    return f"{count} sleeps, memory flat"


async def _declared(bench: Bench) -> TrainerPeer:
    """Returns the trainer of the shared run. Raises NotDeclaredError unless the servers can sleep."""
    if "sleep" not in await bench.offered("capabilities"):
        raise NotDeclaredError("sleep is not offered")
    return await bench.run()


PARTS = {
    "held": held,
    "update": update,
    "abort": abort,
    "refusals": refusals,
    "cycles": cycles,
}
