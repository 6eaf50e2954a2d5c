"""G8: many updates under load: memory stays flat, labels stay right, no request is lost."""

import asyncio
import itertools
from contextlib import suppress

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import whole
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_end import TrainerEnd
from contracts.conformance.verdicts import Broken

CLIENTS = 4  # a server
TOKENS = 48  # a request
ALLOWED = 16 * 2**20  # bytes by which memory may grow after the first quarter
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
        try:
            memory = [await _update(bench, trainer, clients) for _ in range(bench.updates)]
        finally:
            stop.set()
            done = await asyncio.gather(*clients, return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error
        worst = _labels(bench, trainer, answers)
    growth = max(
        _growth(server, [figures[i] for figures in memory], bench.updates)
        for i, server in enumerate(bench.servers)
    )
    return (
        f"{bench.updates} updates under {len(clients)} clients: {len(answers)} answers, none lost, off by "
        f"{worst:.0e}; memory {growth / 2**20:+.1f} MiB"
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


async def _update(bench: Bench, trainer: TrainerEnd, clients: list[asyncio.Task]) -> list[int]:
    """Publish the next version; resident bytes of each server after it."""
    kv_cache = await bench.offered("kv_cache")
    version = trainer.version + 1
    publish = asyncio.create_task(
        trainer.publish(version, bench.reference.weights(version), kv_cache=kv_cache[version % len(kv_cache)])
    )
    await asyncio.wait([publish, *clients], return_when=asyncio.FIRST_COMPLETED)
    for client in clients:
        if client.done():  # while updates go on, only a failure ends it
            publish.cancel()
            with suppress(asyncio.CancelledError):
                await publish
            client.result()
    await publish
    return [(await server.contract()).process.resident_bytes for server in bench.servers]


def _labels(bench: Bench, trainer: TrainerEnd, answers: list[tuple[Server, Sample]]) -> float:
    """First spans of some answers under the weights that they name; the largest distance in nats."""
    worst = 0.0
    for server, sample in answers[:: max(1, len(answers) // CHECKED)]:
        version, _, end = sample.spans[0]
        weights = bench.reference.weights(version)
        where = f"{server}: complete {sample.prompt_token_ids} among {trainer.version} updates"
        worst = max(worst, bench.compare(sample, weights, where, upto=end))
    return worst


def _growth(server: Server, resident: list[int], updates: int) -> int:
    """Bytes by which memory grew from the first quarter of the updates to the last one. Each end is the
    least of a few readings: what an update holds while it lasts is no leak."""
    quarter = max(1, updates // 4)
    few = max(1, updates // 8)
    growth = min(resident[-few:]) - min(resident[quarter - 1 : quarter - 1 + few])
    if growth > ALLOWED:
        raise Broken(
            f"resident memory grew by {growth / 2**20:.1f} MiB over {updates - quarter} updates",
            f"at most {ALLOWED / 2**20:.0f} MiB, after the first quarter of the updates",
            f"{server}: publish {updates} versions under load and look at /contract.process.resident_bytes",
        )
    return growth
