"""Checks that no request is lost or wrongly labelled during many weight updates. G8 calls it."""

import asyncio
import itertools
import time
from typing import Any, NamedTuple

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.growth import Growth
from contracts.conformance.inference.load import cancelling, check_finished
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

CLIENTS = 12  # clients per server
TOKENS = (48, 48, 6)  # tokens of a request, by client in turn; short requests arrive at more moments
ARRIVING = 64  # clients per server that send short requests
ARRIVE_FOR_S = 0.2  # duration of arrivals before an update
SETS = 5  # sets of weights, published in turn
# If none of so many is lost, fewer than 1 in 1,000 are, with 95 % confidence: 0.999 ** 3000 is below 0.05.
THOROUGH_ANSWERS = 3000
THOROUGH_UPDATES = 4  # factor of updates if thorough
THOROUGH_WITHIN_S = 900.0


class Answer(NamedTuple):
    """A server's response. since: the version that was live when the request was sent."""

    server: Server
    sample: Sample
    since: int


Answers = list[Answer]


async def updates_under_load(bench: Bench, trainer: TrainerPeer, growth: Growth, answers: Answers) -> None:
    """Publishes version after version while clients send requests."""
    stop = asyncio.Event()
    clients = [
        asyncio.create_task(_client(bench, trainer, server, seed, stop, answers))
        for server in bench.servers
        for seed in range(CLIENTS)
    ]
    thorough = bench.settings.thorough
    count = bench.settings.updates * (THOROUGH_UPDATES if thorough else 1)
    deadline = time.monotonic() + THOROUGH_WITHIN_S
    async with cancelling(clients):
        await growth.check_flat(lambda: _update(bench, trainer, clients), count, "updates under load")
        while thorough and len(answers) < THOROUGH_ANSWERS and time.monotonic() < deadline:
            await _update(bench, trainer, clients)
        stop.set()
        await asyncio.gather(*clients)


async def updates_among_arrivals(bench: Bench, trainer: TrainerPeer) -> None:
    """Publishes a version in each mode while short requests arrive continuously."""

    async def arrive(server: Server, seed: int) -> None:
        while True:
            await server.complete(bench.reference.prompt(32, seed=seed), 1)

    arrivals = [
        asyncio.create_task(arrive(server, seed)) for server in bench.servers for seed in range(ARRIVING)
    ]
    async with cancelling(arrivals):
        for kv_cache in await bench.offered("kv_cache"):
            await asyncio.sleep(ARRIVE_FOR_S)
            version = trainer.version + 1
            await trainer.publish(version, weights_of(bench, version), kv_cache=kv_cache)
        for task in arrivals:
            if task.done():
                task.result()


async def _client(
    bench: Bench, trainer: TrainerPeer, server: Server, seed: int, stop: asyncio.Event, answers: Answers
) -> None:
    """Sends one request after another, which must complete and have no label older than at its start."""
    tokens = TOKENS[seed % len(TOKENS)]
    for i in itertools.count():
        if stop.is_set():
            return
        live = trainer.version
        prompt = bench.reference.prompt(8, seed=1000 * seed + i)
        sample = await server.complete(prompt, tokens, temperature=1)
        check_finished(bench, server, sample, tokens)
        if sample.spans[0][0] < live:
            raise GuaranteeError(
                f"a request sent when version {live} was live has the spans {sample.spans}",
                f"labels from {live} on",
                f"{server}: publish up to version {live}, then complete {prompt}",
            )
        answers.append(Answer(server, sample, live))


async def _update(bench: Bench, trainer: TrainerPeer, clients: list[asyncio.Task[Any]]) -> float:
    """Publishes the next version and returns the seconds. Raises the error of a failed client."""
    version = trainer.version + 1
    mode = mode_of(await bench.offered("kv_cache"), version)
    began = time.monotonic()
    publish = asyncio.create_task(trainer.publish(version, weights_of(bench, version), kv_cache=mode))
    async with cancelling([publish]):
        await asyncio.wait([publish, *clients], return_when=asyncio.FIRST_COMPLETED)
        for client in clients:
            if client.done():  # a client ends during updates only if it fails
                client.result()
        await publish
    return time.monotonic() - began


def weights_of(bench: Bench, version: int) -> Weights:
    """Returns the weights that are published as `version`."""
    return bench.weights(1 + (version - 1) % SETS)


def mode_of(kv_cache: list[str], version: int) -> str:
    """Returns the cache mode for publishing `version`. kv_cache: modes that every server offers."""
    return kv_cache[version % len(kv_cache)]
