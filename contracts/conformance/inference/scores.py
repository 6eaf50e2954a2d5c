"""Compares the log-probabilities of `/score`, if it is declared, with the reference. G4 calls it."""

import asyncio
import random
from typing import Any

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.sampling import Sampling
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

LENGTHS = (40, 1, 2, 97, 3, 17, 64, 1, 8, 33, 5, 250)
TEMPERATURES = (None, 0.7, 1.0, 0.2, 3.0)
LONG = 700  # tokens of the longest sequence, if the context allows it


async def check_scores(bench: Bench, server: Server, weights: Weights, version: int) -> float:
    """Scores sequences of many lengths at several temperatures, all at once.

    Returns the largest error in nats. Raises GuaranteeError beyond the tolerance at its temperature.
    """
    limits = await limits_of(server)
    most = limits.max_sequences
    temperatures = [t and min(t, limits.max_temperature) for t in TEMPERATURES]
    lengths = [min(length, bench.context) for length in (*LENGTHS, LONG)]
    sequences = [bench.reference.prompt(length, seed=50 + i) for i, length in enumerate(lengths)]
    sequences.append(sequences[0])  # a repeated sequence
    orders = []
    for seed, _ in enumerate(temperatures):
        order = sequences[:]
        random.Random(seed).shuffle(order)
        orders.append(order[:most])
    bodies: list[dict[str, Any]] = [
        {"sequences": order} | Sampling(temperature).fields
        for order, temperature in zip(orders, temperatures, strict=True)
    ]
    answers = await asyncio.gather(*(server.post("/score", body) for body in bodies))
    exact = {len(ids): _reference(bench, weights, ids) for ids in sequences if len(ids) > 1}
    worst = 0.0
    for (status, answer), body, temperature in zip(answers, bodies, temperatures, strict=True):
        asked = body["sequences"]
        where = f"{server}: POST /score with {len(asked)} sequences of {[*map(len, asked)]} ids"
        where += f" at temperature {temperature}" if temperature else ""
        given = answer.get("logprobs")
        expected_lengths = [len(ids) - 1 for ids in asked]
        if status != 200 or not isinstance(given, list) or [*map(len, given)] != expected_lengths:
            raise GuaranteeError(
                f"POST /score: {status} {str(answer)[:300]}", f"{expected_lengths} log-probabilities", where
            )
        if answer.get("version") != version:
            raise GuaranteeError(f"POST /score: version {answer.get('version')}", f"version {version}", where)
        for number, (ids, scores) in enumerate(zip(asked, given, strict=True)):
            if scores:
                worst = max(
                    worst,
                    _off(bench, exact[len(ids)], ids, scores, Sampling(temperature), f"{where}; {number}"),
                )
    return worst


def _reference(bench: Bench, weights: Weights, ids: list[int]) -> torch.Tensor:
    return bench.reference.distribution(weights, ids[:1], ids[1:])


def _off(
    bench: Bench, log_p: torch.Tensor, ids: list[int], scores: list[float], sampling: Sampling, where: str
) -> float:
    """Returns the largest error in nats. Raises GuaranteeError if an error exceeds its bounds."""
    chosen = torch.tensor(ids[1:])
    lowest, highest = sampling.bounds(log_p, chosen, bench.settings.tolerance)
    given = torch.tensor(scores, dtype=torch.float64)
    wrong = ~((given >= lowest) & (given <= highest))
    expected = sampling.distribution(log_p).gather(1, chosen[:, None])[:, 0]
    if wrong.any():
        i = int(wrong.nonzero()[0, 0])
        raise GuaranteeError(
            f"POST /score is off: id {i + 1} of {len(ids)} has {given[i]:.5f}",
            f"{expected[i]:.5f} by a Hugging Face forward, within {bench.settings.tolerance:g}",
            where,
        )
    return float((given - expected).abs().max())
