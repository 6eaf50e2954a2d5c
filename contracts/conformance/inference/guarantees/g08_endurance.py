"""G8: many updates under load: memory stays flat, labels stay right, no request is lost."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import cancelled, whole
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerEnd
from contracts.conformance.verdicts import Broken

CLIENTS = 4  # a server
TOKENS = 48  # a request
MIB = 2**20
ROUNDS = 4  # of updates, in one of which memory has to stay flat
NOISE = 4 * MIB  # by which memory may grow after the first quarter of a round, whatever the model
COPIES = 2  # of the weights, by which it may grow besides
SETS = 5  # of weights, in turn
CHECKED = 24  # answers compared with the reference


async def endurance(bench: Bench) -> str:
    answers: list[tuple[Server, Sample]] = []
    async with bench.new_run() as trainer:
        stop = asyncio.Event()
        clients = [
            asyncio.create_task(_client(bench, trainer, server, seed, stop, answers))
            for server in bench.servers
            for seed in range(CLIENTS)
        ]
        async with cancelled(clients):
            growth = await _flat(bench, trainer, clients)
            stop.set()
            await asyncio.gather(*clients)
        worst = _labels(bench, trainer, answers)
    return (
        f"{trainer.version - 1} updates under {len(clients)} clients: {len(answers)} answers, none lost, off "
        f"by {worst:.0e}; memory {growth / MIB:+.1f} MiB of {_allowed(bench) / MIB:.1f} allowed"
    )


async def _flat(bench: Bench, trainer: TrainerEnd, clients: list[asyncio.Task[Any]]) -> int:
    """Publishes until memory stays flat for a round: an engine may fill its caches in the rounds before,
    a leak grows in each. Bytes by which it grew in the last round, on the worst server."""
    updates = bench.settings.updates
    for _ in range(ROUNDS):
        memory = [await _update(bench, trainer, clients) for _ in range(updates)]
        growth = [_growth(resident) for resident in zip(*memory, strict=True)]
        if max(growth) <= _allowed(bench):
            return max(growth)
    raise Broken(
        f"resident memory grew by {max(growth) / MIB:.1f} MiB over {updates - updates // 4} updates, after "
        f"{trainer.version - 1 - updates} others",
        f"at most {_allowed(bench) / MIB:.1f} MiB, in one of {ROUNDS} rounds",
        f"{bench.servers[growth.index(max(growth))]}: publish {trainer.version} versions under load and look "
        "at /contract.process.resident_bytes",
    )


async def _client(
    bench: Bench,
    trainer: TrainerEnd,
    server: Server,
    seed: int,
    stop: asyncio.Event,
    answers: list[tuple[Server, Sample]],
) -> None:
    """One request after the other; each is whole, and not older than what was live when it began."""
    for i in itertools.count():
        if stop.is_set():
            return
        live = trainer.version
        prompt = bench.reference.prompt(8, seed=1000 * seed + i)
        sample = await server.complete(prompt, TOKENS, temperature=1)
        whole(bench, server, sample, TOKENS)
        if sample.spans[0][0] < live:
            raise Broken(
                f"a request sent when version {live} was live has the spans {sample.spans}",
                f"labels from {live} on",
                f"{server}: publish up to version {live}, then complete {prompt}",
            )
        answers.append((server, sample))


def _weights(bench: Bench, version: int) -> Weights:
    return bench.weights(1 + (version - 1) % SETS)


async def _update(bench: Bench, trainer: TrainerEnd, clients: list[asyncio.Task[Any]]) -> list[int]:
    """Publish the next version; resident bytes of each server after it."""
    kv_cache = await bench.offered("kv_cache")
    version = trainer.version + 1
    weights, mode = _weights(bench, version), kv_cache[version % len(kv_cache)]
    publish = asyncio.create_task(trainer.publish(version, weights, kv_cache=mode))
    async with cancelled([publish]):
        await asyncio.wait([publish, *clients], return_when=asyncio.FIRST_COMPLETED)
        for client in clients:
            if client.done():  # while updates go on, only a failure ends it
                client.result()
        await publish
    return [(await server.contract()).process.resident_bytes for server in bench.servers]


def _labels(bench: Bench, trainer: TrainerEnd, answers: list[tuple[Server, Sample]]) -> float:
    """First spans of some answers under the weights that they name; the largest distance in nats."""
    worst = 0.0
    for server, sample in answers[:: max(1, len(answers) // CHECKED)]:
        version, _, end = sample.spans[0]
        weights = _weights(bench, version)
        where = f"{server}: complete {sample.prompt_token_ids} among {trainer.version} updates"
        worst = max(worst, bench.compare(sample, weights, where, upto=end))
    return worst


def _allowed(bench: Bench) -> int:
    return NOISE + COPIES * sum(tensor.nbytes for tensor in bench.weights(1).values())


def _growth(resident: Sequence[int]) -> int:
    """Bytes by which memory grew from the first quarter of the updates to the last one. Each end is the
    least of a few readings: what an update holds while it lasts is no leak."""
    quarter, few = len(resident) // 4, len(resident) // 8
    return min(resident[-few:]) - min(resident[quarter - 1 : quarter - 1 + few])
