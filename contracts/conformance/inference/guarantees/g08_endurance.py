"""G8: over many updates under load, memory stays flat, labels stay right and no request is lost."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import cancelling, check_finished
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

CLIENTS = 4  # clients per server
TOKENS = 48  # tokens per request
MIB = 2**20
ROUNDS = 4  # rounds of updates; memory must stay flat in one of them
NOISE = 4 * MIB  # bytes by which memory may grow after the first quarter of a round, for any model
COPIES = 2  # copies of the weights by which memory may grow in addition
SETS = 5  # sets of weights, published in turn
CHECKED = 24  # responses compared with the reference


async def endurance(bench: Bench) -> str:
    """Publishes many versions while clients send requests, and checks memory, labels and responses."""
    answers: list[tuple[Server, Sample]] = []
    async with bench.new_run() as trainer:
        stop = asyncio.Event()
        clients = [
            asyncio.create_task(_client(bench, trainer, server, seed, stop, answers))
            for server in bench.servers
            for seed in range(CLIENTS)
        ]
        async with cancelling(clients):
            growth = await _flat(bench, trainer, clients)
            stop.set()
            await asyncio.gather(*clients)
        worst = _labels(bench, trainer, answers)
    return (
        f"{trainer.version - 1} updates under {len(clients)} clients: {len(answers)} answers, none lost, off "
        f"by {worst:.0e}; memory {growth / MIB:+.1f} MiB of {_allowed(bench) / MIB:.1f} allowed"
    )


async def _flat(bench: Bench, trainer: TrainerPeer, clients: list[asyncio.Task[Any]]) -> int:
    """Publishes until memory stays flat for a round.

    Returns the bytes by which the worst server grew in that round.

    An engine may fill its caches in the first rounds, but a leak grows in every round.
    """
    updates = bench.settings.updates
    for _ in range(ROUNDS):
        memory = [await _update(bench, trainer, clients) for _ in range(updates)]
        growth = [_growth(resident) for resident in zip(*memory, strict=True)]
        if max(growth) <= _allowed(bench):
            return max(growth)
    raise GuaranteeError(
        f"resident memory grew by {max(growth) / MIB:.1f} MiB over {updates - updates // 4} updates, after "
        f"{trainer.version - 1 - updates} others",
        f"at most {_allowed(bench) / MIB:.1f} MiB, in one of {ROUNDS} rounds",
        f"{bench.servers[growth.index(max(growth))]}: publish {trainer.version} versions under load and look "
        "at /contract.process.resident_bytes",
    )


async def _client(
    bench: Bench,
    trainer: TrainerPeer,
    server: Server,
    seed: int,
    stop: asyncio.Event,
    answers: list[tuple[Server, Sample]],
) -> None:
    """Sends one request after the other.

    Each must be complete, and not older than the version that was live when it began.
    """
    for i in itertools.count():
        if stop.is_set():
            return
        live = trainer.version
        prompt = bench.reference.prompt(8, seed=1000 * seed + i)
        sample = await server.complete(prompt, TOKENS, temperature=1)
        check_finished(bench, server, sample, TOKENS)
        if sample.spans[0][0] < live:
            raise GuaranteeError(
                f"a request sent when version {live} was live has the spans {sample.spans}",
                f"labels from {live} on",
                f"{server}: publish up to version {live}, then complete {prompt}",
            )
        answers.append((server, sample))


def _weights(bench: Bench, version: int) -> Weights:
    return bench.weights(1 + (version - 1) % SETS)


async def _update(bench: Bench, trainer: TrainerPeer, clients: list[asyncio.Task[Any]]) -> list[int]:
    """Publishes the next version, and returns each server's resident bytes after it."""
    kv_cache = await bench.offered("kv_cache")
    version = trainer.version + 1
    weights = _weights(bench, version)
    mode = kv_cache[version % len(kv_cache)]
    publish = asyncio.create_task(trainer.publish(version, weights, kv_cache=mode))
    async with cancelling([publish]):
        await asyncio.wait([publish, *clients], return_when=asyncio.FIRST_COMPLETED)
        for client in clients:
            if client.done():  # during updates a client only ends by a failure
                client.result()
        await publish
    return [(await server.contract()).process.resident_bytes for server in bench.servers]


def _labels(bench: Bench, trainer: TrainerPeer, answers: list[tuple[Server, Sample]]) -> float:
    """Returns the largest error, in nats, of the first spans of some responses.

    The expected values come from the weights that the spans name.
    """
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
    """Returns the bytes by which memory grew from the first quarter of the updates to the last one.

    Each end is the least of a few readings, because memory that is held only during an update is no leak.
    """
    quarter = len(resident) // 4
    few = len(resident) // 8
    return min(resident[-few:]) - min(resident[quarter - 1 : quarter - 1 + few])
