"""Checks that a request which `recompute` has read again keeps its temperature. G4 calls it."""

import asyncio

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import in_flight
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer

TEMPERATURE = 2.0
TOGETHER = 4  # requests on each server


async def check_recomputed(bench: Bench, trainer: TrainerPeer) -> int:
    """Publishes a version while requests run at temperature 2. Returns how many tokens it has sampled."""
    version = trainer.version + 1
    async with in_flight(bench, TOGETHER, bench.context // 2, temperature=TEMPERATURE) as tasks:
        await trainer.publish(version, bench.weights(version), kv_cache="recompute")
        await asyncio.gather(*(task for _, task in tasks))
    return sum(_check(bench, server, task.result(), version) for server, task in tasks)


def _check(bench: Bench, server: Server, sample: Sample, version: int) -> int:
    """Checks the tokens of `version`, and returns how many they are."""
    tokens = len(sample.token_ids)
    newer = range(sample.versions.index(version) if version in sample.versions else tokens, tokens)
    weights = bench.weights(version)
    expected = bench.reference.logprobs(weights, sample.prompt_token_ids, sample.token_ids, TEMPERATURE)
    where = f"{server}: publish version {version}, recompute; requests run at temperature {TEMPERATURE:g}"
    bench.check_positions(sample, expected, where, newer)
    return len(newer)
