"""G1: after `live`, the server computes with exactly the weights that were sent."""

import random
from collections.abc import Iterator

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.buckets import bucket_bytes_for, packed
from contracts.conformance.inference.content_events import after_every_event, under_load
from contracts.conformance.inference.context_edge import check_full_context
from contracts.conformance.inference.recovery import ready_to_join, restarts
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.inference.weight_variants import (
    GROWTH,
    SHRINKAGE,
    partly_new,
    scaled,
    with_the_last_rows_in_use,
)
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

DTYPES = ("float32", "bfloat16", "float16")
LENT_BUCKETS = (1, 4, 1000, 4)


async def full_context(bench: Bench) -> str:
    """Completes prompts that fill the context."""
    await bench.run()
    worst = max([await check_full_context(bench, server, bench.weights(1)) for server in bench.servers])
    return f"full contexts are off by {worst:.0e}"


async def formats(bench: Bench) -> str:
    """Publishes weights in every dtype, bucket size and receive mode."""
    dtypes = [d for d in DTYPES if d in await bench.offered("accepts_dtypes")]
    cases = [
        (dtype, count, receive)
        for dtype in [*dtypes, *(["mixed"] if {"float32", "bfloat16"} <= {*dtypes} else [])]
        for count in (1, 4, 1000)
        for receive in await bench.receive_modes()
    ]
    worst = 0.0
    trainer = await bench.run()
    for dtype, count, receive in cases:
        version = trainer.version + 1
        weights = shuffled(cast(bench.weights(version), dtype), seed=version)
        changes = {"bucket_bytes": bucket_bytes_for(weights, count), "receive": receive}
        what = f"as {dtype}, shuffled, {changes}"
        worst = max(worst, await _published(bench, trainer, weights, what, **changes))
    head = "tied head" if bench.reference.tied else "head of its own"
    return (
        f"{len(cases)} updates ({', '.join(dtypes)}; 1 to many buckets; shuffled; {head}) are off by "
        f"{worst:.0e}"
    )


async def variants(bench: Bench) -> str:
    """Publishes weights that differ in some tensors only, or in magnitude."""
    worst = 0.0
    trainer = await bench.run()
    for what, variant in _variants(bench, trainer.version):
        worst = max(worst, await _published(bench, trainer, variant, what))
    return f"variants by {worst:.0e}"


async def load(bench: Bench) -> str:
    """Publishes weights while many requests run."""
    return f"under load by {await under_load(bench, await bench.run()):.0e}"


async def events(bench: Bench) -> str:
    """Publishes weights after a takeover, an abort and in a new epoch."""
    return f"after every event by {await after_every_event(bench):.0e}"


async def lent(bench: Bench) -> str:
    """Publishes weights over a group of backend `ipc`, and breaks it once."""
    if "ipc" not in await bench.offered("backends"):
        raise NotDeclaredError("ipc is not offered")
    if "nccl" in await bench.offered("backends"):  # the servers are on a GPU
        if not torch.cuda.is_available():
            raise NotDeclaredError("ipc is offered on a GPU, and the kit sees none")
        torch.cuda.init()
    worst = 0.0
    bench.end_run()
    trainer = bench.trainer()
    trainer.backend = "ipc"
    try:
        for _ in range(2):
            await trainer.join()
            for count in LENT_BUCKETS:
                version = trainer.version + 1
                weights = bench.weights(version)
                changes = {"bucket_bytes": bucket_bytes_for(weights, count)}
                worst = max(worst, await _published(bench, trainer, weights, f"lent, {changes}", **changes))
            await _half_lent(bench, trainer)
    finally:
        trainer.leave()
    return f"lent buffers by {worst:.0e}"


async def _half_lent(bench: Bench, trainer: TrainerPeer) -> None:
    """Leaves the group after the first bucket of an update. The weights before it must serve on.

    A server whose engine restarts serves none until the next version.
    """
    weights = bench.weights(trainer.version + 1)
    request = trainer.update_request(trainer.version + 1, weights)
    await trainer.request_update(request)
    await trainer.send(packed(weights, request["bucket_bytes"])[:1])
    trainer.leave()
    for server, status in zip(
        bench.servers, await trainer.outcomes(request["version"], bench.settings.patience_s), strict=True
    ):
        if (status.state, status.touched) != ("failed", False):
            raise GuaranteeError(
                f"{server}: {status.model_dump()}",
                "failed and not touched: rank 0 left after the first bucket",
                "join with backend ipc, lend one bucket of an update, leave",
            )
        if await restarts(server):
            await ready_to_join(bench, server, "half an update")
            continue
        await bench.check_content(server, bench.weights(trainer.version), trainer.version, "half an update")


PARTS = {
    "context": full_context,
    "formats": formats,
    "variants": variants,
    "load": load,
    "events": events,
    "lent": lent,
}


async def _published(
    bench: Bench, trainer: TrainerPeer, weights: Weights, what: str, **changes: object
) -> float:
    version = trainer.version + 1
    await trainer.publish(version, weights, **changes)
    after = f"publish version {version} {what}"
    return max([await bench.check_content(server, weights, version, after) for server in bench.servers])


def _variants(bench: Bench, seed: int) -> Iterator[tuple[str, Weights]]:
    """Yields weights with one special property each, and its description."""
    reference = bench.reference
    weights = bench.weights(seed)
    yield "again", weights
    yield from partly_new(reference, weights, bench.weights(seed + 1)).items()
    for factor in (SHRINKAGE, *([GROWTH] if bench.settings.tolerance < 0.01 else [])):
        yield f"with matrices times {factor:g}", scaled(reference, weights, factor)
    yield "with the last rows of the vocabulary in use", with_the_last_rows_in_use(reference, weights)


def cast(weights: Weights, dtype: str) -> dict[str, torch.Tensor]:
    """Returns the weights in `dtype`. With `mixed`, one-dimensional tensors stay float32."""
    if dtype == "mixed":
        return {name: w if w.dim() < 2 else w.bfloat16() for name, w in weights.items()}
    return {name: w.to(getattr(torch, dtype)) for name, w in weights.items()}


def shuffled(weights: Weights, seed: int) -> dict[str, torch.Tensor]:
    names = sorted(weights)
    random.Random(seed).shuffle(names)
    return {name: weights[name] for name in names}
