"""Versions that are sent again with other content, and updates that are not finite. G7 sends them.

A server that assumes it already has a version would serve wrong weights with the right label.
"""

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.recovery import check_failed_update, restore_service
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

OTHER = 40  # added to a version to get the seed of other content for it


async def same_version_other_content(bench: Bench, run: TrainerPeer) -> None:
    """Sends the live version to a rebuilt group again, first with the same and then with other content."""
    for seed in (run.version, run.version + OTHER):
        await run.join()
        await run.publish(run.version, bench.weights(seed))
        for server in bench.servers:
            what = f"version {run.version} is sent again in a new epoch, seed {seed}"
            await bench.check_content(server, bench.weights(seed), run.version, what)


async def not_finite(bench: Bench, run: TrainerPeer) -> None:
    """Sends weights with a last value that is not finite. The update must fail, and report `touched`.

    A NaN is sent in the usual dtype, and an infinity as bfloat16 if every server accepts it.
    """
    accepted = await bench.offered("accepts_dtypes")
    await _not_finite(bench, run, torch.nan, None)
    await _not_finite(bench, run, torch.inf, torch.bfloat16 if "bfloat16" in accepted else None)


async def _not_finite(bench: Bench, run: TrainerPeer, value: float, dtype: torch.dtype | None) -> None:
    version = run.version + 1
    weights = {name: tensor.clone() for name, tensor in bench.weights(version).items()}
    last = list(weights)[-1]
    weights[last] = weights[last].to(dtype or weights[last].dtype)
    weights[last].view(-1)[-1] = value
    request = run.update_request(version, weights)
    await run.request_update(request)
    what = f"the last weight of an update is {value}, as {weights[last].dtype}"
    try:
        await run.send(packed(weights, request["bucket_bytes"]))
    except RuntimeError as error:
        raise GuaranteeError(f"the broadcast broke: {error}", "every bucket is received", what) from error
    for server, status in zip(bench.servers, await run.outcomes(version), strict=True):
        await check_failed_update(bench, server, run.version, status, "paused", what)
    await restore_service(bench, run, what)
