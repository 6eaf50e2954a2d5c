"""G19: a server that sleeps gives memory back; no token is lost, and none is sampled twice."""

import asyncio
from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.mixed_load import cancelling
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.sleeps import (
    SLEEP,
    TOGETHER,
    WAKE,
    Held,
    check_awake,
    completed,
    lengths,
    put_to_sleep,
    running,
    sleep_request,
    too_fast,
    wake,
    wake_request,
)
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

MORE_TRIES = 3  # with other seeds
CYCLES = 12
MANY_CYCLES = 50
SEEN = 2**26  # bytes from which the release of memory is seen beside a process's noise
FREED = 0.5  # share of the released bytes by which resident memory must fall on a CPU


async def held(bench: Bench) -> str:
    """Sleeps twice with requests in flight, and compares them with requests that never slept."""
    trainer = await _declared(bench)
    tries = lengths(bench)
    tries += tries[-1:] * MORE_TRIES
    for server in bench.servers:
        fault: GuaranteeError | None = None
        for number, max_tokens in enumerate(tries):
            async with running(bench, server, max_tokens, seed=number * TOGETHER) as requests:
                crossed = await _sleeps_twice(bench, trainer, requests, max_tokens)
                samples = await completed(bench, requests, max_tokens)
            fault = await _unequal(server, requests, samples) if crossed else too_fast(bench)
            if fault is None:
                break
        if fault is not None:
            raise fault
    return f"{crossed} requests slept twice, and their tokens are those of requests that never did"


async def _sleeps_twice(bench: Bench, trainer: TrainerPeer, requests: Held, max_tokens: int) -> int:
    """Returns how many requests were held in the second sleep."""
    server = requests.server
    version = trainer.version
    unfinished = 0
    for _ in range(2):
        answer = await put_to_sleep(trainer, server)
        unfinished = requests.unfinished
        await requests.check_quiet()
        new = asyncio.create_task(server.complete(bench.reference.prompt(6), SHORT))
        async with cancelling([new]):
            await requests.check_quiet()
            if new.done() and unfinished:
                raise GuaranteeError(
                    f"a new request was answered while the server slept: {new.result()}",
                    "it waits until the server wakes",
                    f"{server}: POST {SLEEP}, then complete",
                )
            if answer["held"] < requests.unfinished:
                raise GuaranteeError(
                    f"held is {answer['held']}, and {requests.unfinished} requests wait",
                    "held counts each choice that waits",
                    f"{server}: POST {SLEEP} while {requests.unfinished} requests run",
                )
            await wake(trainer, server, version)
            bench.check_label(await new, version, f"{server}: complete while it sleeps, then wake it")
    for fields, sample in zip(requests.asked, await completed(bench, requests, max_tokens), strict=True):
        bench.check_label(sample, version, _where(server, fields))
        bench.compare(sample, bench.weights(version), _where(server, fields))
    return unfinished


def _where(server: Server, fields: dict[str, Any]) -> str:
    return f"{server}: complete {fields}, and let it sleep twice meanwhile"


async def _unequal(server: Server, requests: Held, samples: list[Sample]) -> GuaranteeError | None:
    """Returns the error if a request with a seed differs from one that never slept, else None.

    Rounding differs between batches, and may change a token.
    """
    for fields, sample in zip(requests.asked, samples, strict=True):
        if "seed" in fields and (plain := await server.complete(**fields)).token_ids != sample.token_ids:
            return GuaranteeError(
                f"the seed gave {sample.token_ids}",
                f"{plain.token_ids}, as without the sleep",
                _where(server, fields),
            )
    return None


async def update(bench: Bench) -> str:
    """Wakes a server that kept nothing, and one that kept its weights, by updates."""
    trainer = await _declared(bench)
    crossed = 0
    for keep in ("nothing", "weights"):
        for max_tokens in lengths(bench):
            crossed = await _wakes_by_update(bench, trainer, keep, max_tokens)
            if crossed:
                break
        else:
            raise too_fast(bench)
    return "new weights wake it, and their tokens are theirs alone"


async def _wakes_by_update(bench: Bench, trainer: TrainerPeer, keep: str, max_tokens: int) -> int:
    """Returns the number of requests of the last server that were held."""
    server = bench.servers[-1]
    old = trainer.version
    version = old + 1
    async with running(bench, server, max_tokens) as requests:
        for other in bench.servers:
            await put_to_sleep(trainer, other, keep=keep)
        if keep == "nothing":
            await check_refused(server, BadRequest(WAKE, wake_request(trainer), 409, "weights_dropped"))
        unfinished = requests.unfinished
        new = asyncio.create_task(server.complete(bench.reference.prompt(6), SHORT))
        async with cancelling([new]):
            await requests.check_quiet()
            await _called_off(bench, trainer, version)
            await requests.check_quiet()
            await trainer.join()
            await trainer.publish(version, bench.weights(version))
            what = f"sleep with keep {keep}, then publish version {version}"
            for other in bench.servers:
                await check_awake(other, what)
                await bench.check_content(other, bench.weights(version), version, what)
            bench.check_label(await new, version, f"{server}: complete while it sleeps; {what}")
        for sample in await completed(bench, requests, max_tokens):
            _check_recomputed(bench, sample, old, version, f"{server}: complete; {what} meanwhile")
    return unfinished


async def _called_off(bench: Bench, trainer: TrainerPeer, version: int) -> None:
    """Begins an update of the sleeping servers, and calls it off: they sleep on."""
    request = trainer.update_request(version, bench.weights(version))
    await trainer.request_update(request)
    await trainer.send(packed(bench.weights(version), request["bucket_bytes"])[:1])
    name = {key: request[key] for key in ("run", "epoch", "version")}
    for server in bench.servers:
        status, body = await server.post("/abort_weight_update", name)
        asleep = (await server.get("/health"))[1].get("status")
        if (body.get("state"), body.get("touched"), asleep) != ("failed", False, "asleep"):
            raise GuaranteeError(
                f"{status} {body}, and /health is {asleep}",
                "failed and not touched, and it sleeps on",
                f"{server}: POST {SLEEP}, request an update, call it off",
            )


def _check_recomputed(bench: Bench, sample: Sample, old: int, version: int, where: str) -> None:
    """Checks each token by a forward of the weights that label it, alone."""
    labels = sample.versions
    if not set(labels) <= {old, version}:
        raise GuaranteeError(f"labels {sample.spans}", f"{old}, then {version}", where)
    for label in set(labels):
        positions = [i for i, found in enumerate(labels) if found == label]
        expected = bench.reference.logprobs(bench.weights(label), sample.prompt_token_ids, sample.token_ids)
        bench.check_positions(sample, expected, where, positions)


async def abort(bench: Bench) -> str:
    """Sleeps with `requests: abort`, and by a takeover while it sleeps."""
    trainer = await _declared(bench)
    server = bench.servers[-1]
    longest = lengths(bench)[-1]
    async with running(bench, server, longest) as requests:
        answer = await put_to_sleep(trainer, server, requests="abort")
        aborted = [await task for task in requests.tasks]
        _check_aborted(server, aborted, longest, "requests: abort")
        if answer["held"]:
            raise GuaranteeError(
                f"held is {answer['held']}", "0: they were aborted", f"{server}: POST {SLEEP}"
            )
    await wake(trainer, server, trainer.version)
    async with running(bench, server, longest) as requests:
        for other in bench.servers:
            await put_to_sleep(trainer, other, keep="nothing")
        bench.end_run()
        trainer = bench.trainer()
        await trainer.join()
        _check_aborted(server, [await task for task in requests.tasks], longest, "taken over in sleep")
        try:
            await trainer.publish(1, bench.weights(1))
            for other in bench.servers:
                await bench.check_content(other, bench.weights(1), 1, "a takeover of a sleeping server")
        finally:
            trainer.leave()
    return "requests end with abort where that is asked for, and at a takeover"


def _check_aborted(server: Server, samples: list[Sample], max_tokens: int, what: str) -> None:
    if all(sample.finish_reason != "abort" for sample in samples):
        ends = [(sample.finish_reason, len(sample.token_ids)) for sample in samples]
        raise GuaranteeError(f"requests of {max_tokens} tokens ended as {ends}", "abort", f"{server}: {what}")


async def refusals(bench: Bench) -> str:
    """Refuses bad requests, awake, asleep and while weights are received."""
    trainer = await _declared(bench)
    tried = 0
    for server in bench.servers:
        for bad in _bad(trainer):
            await check_refused(server, bad)
            await check_awake(server, f"{bad.path} {bad.body}")
            tried += 1
        await wake(trainer, server, trainer.version)  # awake already
        await put_to_sleep(trainer, server)
        for bad in [*_bad(trainer), _invalid(SLEEP, sleep_request(trainer, keep="nothing"))]:
            await check_refused(server, bad)
            tried += 1
        await wake(trainer, server, trainer.version)
    await _while_receiving(bench, trainer)
    return f"{tried} bad requests change nothing"


def _invalid(path: str, body: dict[str, Any]) -> BadRequest:
    return BadRequest(path, body, 422, "invalid_request")


def _bad(trainer: TrainerPeer) -> list[BadRequest]:
    good = sleep_request(trainer)
    without = {key: value for key, value in good.items() if key != "timeout_s"}
    found = [_invalid(SLEEP, without)]
    for change in (
        {"keep": "everything"},
        {"requests": "drop"},
        {"timeout_s": 0},
        {"no_such_field": 1},
    ):
        found.append(_invalid(SLEEP, good | change))
    for path, body in ((SLEEP, good), (WAKE, wake_request(trainer))):
        found += [
            BadRequest(path, body | {"run": "another"}, 409, "other_run"),
            BadRequest(path, body | {"epoch": trainer.epoch + 1}, 409, "stale_epoch"),
            _invalid(path, body | {"version": 1}),
        ]
    return found


async def _while_receiving(bench: Bench, trainer: TrainerPeer) -> None:
    """Checks that an update is neither disturbed by a sleep nor by a wake."""
    version = trainer.version + 1
    weights = bench.weights(version)
    request = trainer.update_request(version, weights)
    buckets = packed(weights, request["bucket_bytes"])
    await trainer.request_update(request)
    for server in bench.servers:
        await check_refused(server, BadRequest(SLEEP, sleep_request(trainer), 409, "update_in_progress"))
        await check_refused(server, BadRequest(WAKE, wake_request(trainer), 409, "update_in_progress"))
    await trainer.send(buckets)
    await trainer.wait_until_live(version, sum(bucket.nbytes for bucket in buckets), "sleep meanwhile")
    for server in bench.servers:
        await bench.check_content(server, weights, version, "an update, and sleeps that are refused")


async def cycles(bench: Bench) -> str:
    """Sleeps many times, and looks at the memory of the first and of the last time."""
    trainer = await _declared(bench)
    count = MANY_CYCLES if bench.settings.thorough else CYCLES
    asleep: list[dict[Server, int]] = []
    for i in range(count):
        keep = "nothing" if i % 2 == 0 else "weights"
        found = {}
        for server in bench.servers:
            before = (await server.contract()).process.resident_bytes
            answer = await put_to_sleep(trainer, server, keep=keep)
            found[server] = (await server.contract()).process.resident_bytes
            await _check_freed(server, answer["released_bytes"], before - found[server])
        asleep.append(found)
        if keep == "nothing":
            version = trainer.version + 1
            await trainer.publish(version, bench.weights(version))
        else:
            for server in bench.servers:
                await wake(trainer, server, trainer.version)
    for server in bench.servers:
        size = sum(tensor.nbytes for tensor in bench.weights(1).values())
        growth = asleep[-2][server] - asleep[2][server]  # both with `keep: nothing`
        if growth > SEEN + size:
            raise GuaranteeError(
                f"asleep it holds {growth} bytes more than {count - 4} sleeps before",
                f"at most {SEEN + size} more: what it holds does not grow with what it has done",
                f"{server}: {count} sleeps",
            )
        await bench.check_content(server, bench.weights(trainer.version), trainer.version, f"{count} sleeps")
    return f"{count} sleeps, memory flat"


async def _check_freed(server: Server, released: int, fell: int) -> None:
    """Checks that memory that a server of a CPU tells to have released is free."""
    on_cpu = (await server.contract()).backends == ["gloo"]
    if on_cpu and released > SEEN and fell < FREED * released:
        raise GuaranteeError(
            f"released_bytes is {released}, and resident memory fell by {fell}",
            f"at least {FREED:.0%} of the bytes that it says",
            f"{server}: POST {SLEEP}, and look at /contract.process before and after",
        )


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
