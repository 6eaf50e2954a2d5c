"""G2: requests that run during an update finish, whole, with the right spans."""

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import across
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_end import TrainerEnd
from contracts.conformance.verdicts import Broken


async def in_flight(bench: Bench) -> str:
    crossed, worst = 0, 0.0
    modes = [
        (kv, receive) for kv in await bench.offered("kv_cache") for receive in await bench.receive_modes()
    ]
    async with bench.new_run() as trainer:
        for kv_cache, receive in modes:
            samples, off = await _across_one_update(bench, trainer, kv_cache, receive)
            crossed += sum(len(sample.spans) > 1 for sample in samples)
            worst = max(worst, off)
    offered = ", ".join(f"{kv} {receive}" for kv, receive in modes)
    return f"{crossed} requests crossed an update ({offered}), none lost or restarted; off by {worst:.0e}"


async def _across_one_update(
    bench: Bench, trainer: TrainerEnd, kv_cache: str, receive: str
) -> tuple[list[Sample], float]:
    async def update() -> None:
        version = trainer.version + 1
        await trainer.publish(version, bench.reference.weights(version), kv_cache=kv_cache, receive=receive)

    def check(server: Server, sample: Sample) -> float:
        return _boundary(bench, server, sample, trainer.version, kv_cache)

    return await across(bench, trainer, update, check)


def _boundary(bench: Bench, server: Server, sample: Sample, version: int, kv_cache: str) -> float:
    """Tokens before the update come from the old weights; those after it, with `recompute`, from the
    new ones. The largest distance in nats."""
    where = f"{server}: publish version {version} with kv_cache {kv_cache} while this request runs"
    if [span[0] for span in sample.spans] not in ([version - 1], [version - 1, version]):
        raise Broken(f"spans {sample.spans}", f"one of version {version - 1}, then one of {version}", where)
    boundary = sample.spans[0][2]
    worst = bench.compare(sample, bench.reference.weights(version - 1), where, upto=boundary)
    if kv_cache == "recompute":
        new = bench.reference.weights(version)
        expected = bench.reference.logprobs(new, sample.prompt_token_ids, sample.token_ids)
        worst = max(worst, bench.within(sample, expected, where, range(boundary, len(sample.token_ids))))
    return worst
