"""Checks that a request which `recompute` has read again keeps its temperature. G4 calls it."""

import asyncio

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import in_flight
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

HOT = Sampling(2.0)
TOGETHER = 4  # requests on each server


async def check_recomputed(bench: Bench, trainer: TrainerPeer) -> int:
    """Publishes a version while requests run at temperature 2. Returns how many tokens it has sampled."""
    version = trainer.version + 1
    async with in_flight(bench, TOGETHER, bench.context // 2, temperature=HOT.temperature) as tasks:
        await trainer.publish(version, bench.weights(version), kv_cache="recompute")
        await asyncio.gather(*(task for _, task in tasks))
    return sum(_check(bench, server, task.result(), version) for server, task in tasks)


def _check(bench: Bench, server: Server, sample: Sample, version: int) -> int:
    """Checks the tokens of `version`, and returns how many they are."""
    first = sample.versions.index(version) if version in sample.versions else len(sample.token_ids)
    log_p = bench.reference.distribution(bench.weights(version), sample.prompt_token_ids, sample.token_ids)
    chosen = torch.tensor(sample.token_ids)
    lowest, highest = HOT.bounds(log_p, chosen, bench.settings.tolerance)
    given = torch.tensor(sample.logprobs, dtype=torch.float64)
    wrong = ~((given >= lowest) & (given <= highest))
    wrong[:first] = False
    if wrong.any():
        i = int(wrong.nonzero()[0, 0])
        expected = HOT.distribution(log_p).gather(1, chosen[:, None])[i, 0]
        raise GuaranteeError(
            f"token {i} of {len(chosen)}, of which {first} are older: log-probability {given[i]:.5f}",
            f"{expected:.5f}, within {bench.settings.tolerance:g}",
            f"{server}: publish version {version} with recompute while requests run at temperature 2",
        )
    return len(chosen) - first
