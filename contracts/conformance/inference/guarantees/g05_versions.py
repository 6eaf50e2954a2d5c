"""G5: a token's label is the version that sampled it."""

import asyncio

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.labels import (
    after_a_failed_update,
    after_takeovers,
    queued_over_an_update,
    under_load,
)
from contracts.conformance.inference.load import complete_across
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.scores_beside_updates import check_scores_beside_updates
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

UPDATES = 4


async def updates(bench: Bench) -> str:
    """Publishes several versions while requests run, and compares labels with the weights they name."""
    recompute = "recompute" in await bench.offered("kv_cache")
    trainer = await bench.run()
    for server in bench.servers:
        await _fresh(bench, server, 1)

    beside: list[tuple[Server, Sample]] = []

    async def several_updates() -> None:
        before = trainer.version
        found = await under_load(bench, publish)
        # With `keep`, the new weights may read the rest of a prompt that the old weights began.
        beside[:] = [one for one in found if recompute or one[1].spans[0][0] == before]

    async def publish() -> None:
        for _ in range(UPDATES):
            version = trainer.version + 1
            weights = bench.weights(version)
            await trainer.publish(version, weights, kv_cache=await _kv_cache(bench))
            await asyncio.gather(*(_fresh(bench, server, version) for server in bench.servers))

    def check(server: Server, sample: Sample) -> float:
        return _labelled(bench, trainer, server, sample, recompute)

    samples, worst = await complete_across(bench, trainer, several_updates, check)
    worst = max([worst, *(check(server, sample) for server, sample in beside)])
    labels = sum(len(sample.token_ids) for sample in [*samples, *(sample for _, sample in beside)])
    scope = "every token" if recompute else "the first span of every request"
    return (
        f"{labels} labels over {trainer.version - 1} updates, {scope} under the weights it names: off by "
        f"{worst:.0e}"
    )


async def queued(bench: Bench) -> str:
    """Sends requests between the buckets of an update, and compares labels with the weights they name."""
    recompute = "recompute" in await bench.offered("kv_cache")
    trainer = await bench.run()
    found = await queued_over_an_update(bench, trainer, await _kv_cache(bench))
    worst = max([_labelled(bench, trainer, server, sample, recompute) for server, sample in found])
    return f"{len(found)} requests that were sent in one: by {worst:.0e}"


async def scores(bench: Bench) -> str:
    """Scores sequences while versions are published."""
    if "score" not in await bench.offered("capabilities"):
        raise NotDeclaredError("score is not offered")
    await check_scores_beside_updates(bench, await bench.run())
    return "scores name their versions"


async def failed_update(bench: Bench) -> str:
    """Aborts an update, and checks that its version is live nowhere."""
    await after_a_failed_update(bench, await bench.run())
    return "no label of a failed update"


async def takeovers(bench: Bench) -> str:
    """Lets runs with lower versions take over, and checks labels."""
    bench.end_run()
    await after_takeovers(bench)
    return "labels are right after takeovers"


PARTS = {
    "updates": updates,
    "queued": queued,
    "scores": scores,
    "failed-update": failed_update,
    "takeovers": takeovers,
}


async def _kv_cache(bench: Bench) -> str:
    """Returns `recompute`, with which each span can be checked, if the servers offer it."""
    return "recompute" if "recompute" in await bench.offered("kv_cache") else "keep"


async def _fresh(bench: Bench, server: Server, version: int) -> None:
    """Checks that new requests are labelled `version` and sampled by it, and that `/contract` reports it."""
    await bench.check_content(server, bench.weights(version), version, f"publish version {version}")
    weights = (await server.contract()).weights
    if (weights.version, weights.state) != (version, "live"):
        raise GuaranteeError(
            f"/contract says {weights.model_dump()} after version {version} was live",
            f"version {version}, live",
            f"{server}: publish version {version} and look at GET /contract",
        )


def _labelled(bench: Bench, trainer: TrainerPeer, server: Server, sample: Sample, recompute: bool) -> float:
    """Returns the largest error, in nats, of tokens under the weights that their labels name.

    With `recompute`, every span is checked, because all its keys and values come from its own version.
    Otherwise only the tokens before the first update are checked.
    """
    worst = 0.0
    for version, start, end in sample.spans if recompute else sample.spans[:1]:
        where = (
            f"{server}: publish up to version {trainer.version} while {sample.prompt_token_ids} is completed"
        )
        if not 1 <= version <= trainer.version:
            raise GuaranteeError(
                f"a label says version {version}", f"1 to {trainer.version}: no other was held", where
            )
        weights = bench.weights(version)
        expected = bench.reference.logprobs(weights, sample.prompt_token_ids, sample.token_ids[:end])
        worst = max(worst, bench.check_positions(sample, expected, where, range(start, end)))
    return worst
