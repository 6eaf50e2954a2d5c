"""G2: requests that run during an update complete with the right spans; those that arrive then wait."""

import asyncio

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.load import cancelling, check_finished, complete_across
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer, bucket_bytes_for, packed
from contracts.conformance.verdicts import GuaranteeError

ENOUGH = 8  # tokens after a boundary that suffice to tell old weights from new ones


async def in_flight(bench: Bench) -> str:
    """Publishes weights while requests run, and while requests arrive, in every offered mode."""
    crossed = 0
    worst = 0.0
    receives = await bench.receive_modes()
    modes = [(kv, receive) for kv in await bench.offered("kv_cache") for receive in receives]
    async with bench.new_run() as trainer:
        for kv_cache, receive in modes:
            samples, off = await _across_one_update(bench, trainer, kv_cache, receive)
            crossed += sum(len(sample.spans) > 1 for sample in samples)
            worst = max(worst, off)
        for receive in receives:
            await _arriving_meanwhile(bench, trainer, receive)
    offered = ", ".join(f"{kv} {receive}" for kv, receive in modes)
    return f"{crossed} requests crossed an update ({offered}), others arrived in it; off by {worst:.0e}"


async def _across_one_update(
    bench: Bench, trainer: TrainerPeer, kv_cache: str, receive: str
) -> tuple[list[Sample], float]:
    async def update() -> None:
        version = trainer.version + 1
        await trainer.publish(version, bench.weights(version), kv_cache=kv_cache, receive=receive)

    def check(server: Server, sample: Sample) -> float:
        return _boundary(bench, server, sample, trainer.version, kv_cache)

    return await complete_across(bench, trainer, update, check)


def _boundary(bench: Bench, server: Server, sample: Sample, version: int, kv_cache: str) -> float:
    """Returns the largest error, in nats, of a request that ran during the update.

    Tokens before the update must come from the old weights. Later tokens must not, and with `recompute` they
    must come from the new ones.
    """
    where = f"{server}: publish version {version} with kv_cache {kv_cache} while this request runs"
    if [span[0] for span in sample.spans] not in ([version - 1], [version - 1, version]):
        raise GuaranteeError(
            f"spans {sample.spans}", f"one of version {version - 1}, then one of {version}", where
        )
    boundary = sample.spans[0][2]
    n = len(sample.token_ids)
    old, new = (
        bench.reference.logprobs(bench.weights(v), sample.prompt_token_ids, sample.token_ids)
        for v in (version - 1, version)
    )
    worst = bench.check_positions(sample, old, where, range(boundary))
    if kv_cache == "recompute":
        return max(worst, bench.check_positions(sample, new, where, range(boundary, n)))
    still_old = bench.distance(sample, old, range(boundary, n)) <= bench.settings.tolerance
    if n - boundary >= ENOUGH and still_old:
        raise GuaranteeError(
            f"all {n - boundary} tokens labelled {version} were sampled by version {version - 1}",
            "kept keys and values may be old; the weights may not",
            where,
        )
    return worst


async def _arriving_meanwhile(bench: Bench, trainer: TrainerPeer, receive: str) -> None:
    """Checks that a request that arrives after the first bucket is queued, not refused.

    A server that receives while it generates (`staged`) answers it before the next bucket.
    """
    version = trainer.version + 1
    weights = bench.weights(version)
    first, *rest = buckets = packed(weights, bucket_bytes_for(weights, 4))
    prompt = bench.reference.prompt(9)
    what = f"complete {prompt} after the first of {len(buckets)} buckets ({receive})"
    request = trainer.update_request(
        version, weights, receive=receive, bucket_bytes=bucket_bytes_for(weights, 4)
    )
    await trainer.request_update(request)
    await trainer.send([first])
    asked = [asyncio.create_task(server.complete(prompt, SHORT)) for server in bench.servers]
    async with cancelling(asked):
        if receive == "staged":
            await asyncio.wait(asked, timeout=0.8 * bench.settings.timeout_s)
            if not all(task.done() for task in asked):
                raise GuaranteeError("no answer while the update was staged", "generation goes on", what)
        await trainer.send(rest)
        await trainer.wait_until_live(version, sum(bucket.nbytes for bucket in buckets), what)
        for server, sample in zip(bench.servers, await asyncio.gather(*asked), strict=True):
            check_finished(bench, server, sample, SHORT)
            for label, start, end in sample.spans[:1]:
                expected = bench.reference.logprobs(bench.weights(label), prompt, sample.token_ids)
                bench.check_positions(sample, expected, what, range(start, end))
