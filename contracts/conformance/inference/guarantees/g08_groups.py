"""The part of G8 with weight groups: new epochs, takeovers and failed updates, which must not leak."""

import asyncio
import itertools
import time

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.growth import Growth
from contracts.conformance.inference.recovery import restore_service
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

GROUPS = 8  # groups in a round
THOROUGH_GROUPS = 60
TAKEN_OVER = 3  # every third group belongs to another run, which takes over
FAILED = 8  # failed updates in a round
THOROUGH_FAILED = 24
QUICK_S = 1.0  # only `--thorough` repeats a failure and recovery that take longer
TRIES = 3  # measurements of a slow failure
SETS = 5  # sets of weights, published in turn


async def check_groups(bench: Bench, growth: Growth) -> int:
    """Joins groups one after another and checks that resources stay flat. Returns their number."""
    trainer = bench.trainer()
    numbers = itertools.count()

    async def event() -> float:
        nonlocal trainer
        number = next(numbers)
        began = time.monotonic()
        if number % TAKEN_OVER == 0:
            trainer.leave()
            trainer = bench.trainer()
        await trainer.join()
        seconds = time.monotonic() - began
        await trainer.publish(trainer.version + 1, bench.weights(1 + number % SETS))
        return seconds

    try:
        count = THOROUGH_GROUPS if bench.settings.thorough else GROUPS
        await growth.check_flat(event, count, "groups were joined")
        await _failed_updates(bench, growth, trainer)
    finally:
        trainer.leave()
    return next(numbers)


async def _failed_updates(bench: Bench, growth: Growth, trainer: TrainerPeer) -> None:
    """Lets updates fail because the trainer leaves, and checks that their buffers are freed."""

    async def event() -> float:
        began = time.monotonic()
        await _fail(bench, trainer)
        await restore_service(bench, trainer, "the trainer left amid an update")
        return time.monotonic() - began

    seconds = await event()
    for _ in range(TRIES - 1):  # a busy machine may be slow once
        if seconds >= QUICK_S:
            seconds = await event()
    if bench.settings.thorough or seconds < QUICK_S:
        count = THOROUGH_FAILED if bench.settings.thorough else FAILED
        await growth.check_flat(event, count, "updates failed")


async def _fail(bench: Bench, trainer: TrainerPeer) -> None:
    version = trainer.version + 1
    weights = bench.weights(1 + version % SETS)
    request = trainer.update_request(version, weights)
    await trainer.request_update(request)
    await trainer.send(packed(weights, request["bucket_bytes"])[:1])
    await asyncio.to_thread(trainer.leave)
    for server, status in zip(bench.servers, await trainer.outcomes(version), strict=True):
        if status.state != "failed":
            raise GuaranteeError(
                f"{server}: {status}", "failed", f"leave the group after a bucket of version {version}"
            )
