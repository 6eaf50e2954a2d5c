"""G1: after `live`, the server computes with exactly the weights that were sent."""

import random

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.trainer_peer import bucket_bytes_for

DTYPES = ("float32", "bfloat16", "float16")


async def content(bench: Bench) -> str:
    """Publishes weights in every dtype, bucket size and receive mode, and checks what they sample."""
    dtypes = [d for d in DTYPES if d in await bench.offered("accepts_dtypes")]
    cases = [
        (dtype, count, receive)
        for dtype in [*dtypes, *(["mixed"] if {"float32", "bfloat16"} <= {*dtypes} else [])]
        for count in (1, 4, 1000)
        for receive in await bench.receive_modes()
    ]
    worst = 0.0
    async with bench.new_run() as trainer:
        for version, (dtype, count, receive) in enumerate(cases, start=2):
            weights = shuffled(cast(bench.weights(version), dtype), seed=version)
            changes = {"bucket_bytes": bucket_bytes_for(weights, count), "receive": receive}
            await trainer.publish(version, weights, **changes)
            after = f"publish version {version} as {dtype}, shuffled, {changes}"
            for server in bench.servers:
                worst = max(worst, await bench.check_content(server, weights, version, after))
    head = "tied head" if bench.reference.tied else "head of its own"
    return (
        f"{len(cases)} updates ({', '.join(dtypes)}; 1 to many buckets; shuffled; {head}): off by {worst:.0e}"
    )


def cast(weights: Weights, dtype: str) -> dict[str, torch.Tensor]:
    """Returns the weights in `dtype`. With `mixed`, one-dimensional tensors stay float32."""
    if dtype == "mixed":
        return {name: w if w.dim() < 2 else w.bfloat16() for name, w in weights.items()}
    return {name: w.to(getattr(torch, dtype)) for name, w in weights.items()}


def shuffled(weights: Weights, seed: int) -> dict[str, torch.Tensor]:
    names = sorted(weights)
    random.Random(seed).shuffle(names)
    return {name: weights[name] for name in names}
