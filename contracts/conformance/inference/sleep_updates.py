"""Wakes servers by updates, with requests that they hold. G19 calls it."""

import asyncio
from functools import partial

from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.mixed_load import cancelling
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.inference.sleeps import (
    SLEEP,
    WAKE,
    check_awake,
    completed,
    put_to_sleep,
    running,
    wake,
    wake_request,
)
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError


async def woken_by_update(bench: Bench, trainer: TrainerPeer, keep: str, max_tokens: int, seed: int) -> int:
    """Puts all servers to sleep, and wakes them by the next version, after an update that is called off.

    Returns the number of requests of the last server that were held.
    """
    server = bench.servers[-1]
    old = trainer.version
    version = old + 1
    weights = bench.weights(version)
    what = f"sleep with keep {keep}, then publish version {version}"
    async with running(bench, server, max_tokens, seed) as requests:
        held = await all_asleep(bench, trainer, keep)
        if keep == "nothing":
            await check_refused(server, BadRequest(WAKE, wake_request(trainer), 409, "weights_dropped"))
        await _called_off(bench, trainer, version)
        await requests.check_quiet(held)
        if keep == "weights":  # the group is gone, and its epoch is still the last
            for other in bench.servers:
                await wake(trainer, other, old)
            held = await all_asleep(bench, trainer, keep)
        new = asyncio.create_task(server.complete(bench.reference.prompt(6), SHORT))
        async with cancelling([new]):
            await trainer.join()
            await trainer.publish(version, weights)
            await _check_awake(bench, version, what)
            bench.check_label(await new, version, f"{server}: complete while it sleeps; {what}")
        samples = await completed(bench, requests, max_tokens)
    for fields, sample in zip(requests.asked, samples, strict=True):
        temperature = fields.get("temperature", 1.0)
        _check_recomputed(bench, sample, (old, version), temperature, f"{server}: complete; {what} meanwhile")
    await all_asleep(bench, trainer, keep)
    await trainer.publish(version, weights)  # the same request, which wakes them all the same
    await _check_awake(bench, version, f"{what}, sleep, publish it again")
    return held


async def all_asleep(bench: Bench, trainer: TrainerPeer, keep: str) -> int:
    """Puts all servers to sleep, first the last one. Returns how many requests that one holds."""
    answers = [await put_to_sleep(trainer, server, keep=keep) for server in reversed(bench.servers)]
    return int(answers[0]["held"])


async def _check_awake(bench: Bench, version: int, what: str) -> None:
    for server in bench.servers:
        await check_awake(server, what)
        await bench.check_content(server, bench.weights(version), version, what)


async def _called_off(bench: Bench, trainer: TrainerPeer, version: int) -> None:
    """Sends all buckets of an update but the last, and calls it off: the servers sleep on."""
    request = trainer.update_request(version, bench.weights(version))
    await trainer.request_update(request)
    buckets = packed(bench.weights(version), request["bucket_bytes"])[:-1]
    await trainer.send(buckets)
    sent = sum(bucket.nbytes for bucket in buckets)
    name = {key: request[key] for key in ("run", "epoch", "version")}
    for server in bench.servers:
        await poll(partial(_has_received, server, version, sent), bench.settings.patience_s)
        status, body = await server.post("/abort_weight_update", name)
        asleep = (await server.get("/health"))[1].get("status")
        if (body.get("state"), body.get("touched"), asleep) != ("failed", False, "asleep"):
            raise GuaranteeError(
                f"{status} {body}, and /health is {asleep}",
                "failed and not touched, and it sleeps on",
                f"{server}: POST {SLEEP}, request an update, call it off",
            )


async def _has_received(server: Server, version: int, sent: int) -> bool:
    return (await server.get(f"/weight_update/{version}"))[1].get("bytes") == sent


def _check_recomputed(
    bench: Bench, sample: Sample, versions: tuple[int, int], temperature: float, where: str
) -> None:
    """Checks each token by a forward of the weights that label it, alone."""
    labels = sample.versions
    if not set(labels) <= {*versions}:
        raise GuaranteeError(f"labels {sample.spans}", f"of {versions[0]}, then of {versions[1]}", where)
    ids = sample.prompt_token_ids, sample.token_ids
    for label in set(labels):
        positions = [i for i, found in enumerate(labels) if found == label]
        expected = bench.reference.logprobs(bench.weights(label), *ids, temperature)
        bench.check_positions(sample, expected, where, positions)
