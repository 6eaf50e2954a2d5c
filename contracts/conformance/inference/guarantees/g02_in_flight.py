"""G2: requests that run during an update complete with the right spans; those that arrive then wait."""

import asyncio

from contracts.conformance.inference.arrivals import Arrivals
from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.crossing import Crossing
from contracts.conformance.inference.load import TOGETHER, complete_across
from contracts.conformance.inference.long_prompts import reading_long_prompts
from contracts.conformance.inference.responsiveness import TRIES, Responsiveness, responsiveness
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

SEVERAL = 3  # updates that one request crosses
HOLD_S = 2.5  # a pause between two buckets
LONG_HOLD_S = 65.0  # one that is longer than the usual limits of a proxy


async def in_flight(bench: Bench) -> str:
    """Publishes weights while requests run, and while requests arrive, in every offered mode."""
    crossed = 0
    worst = 0.0
    receives = await bench.receive_modes()
    offered = await bench.offered("kv_cache")
    modes = [(kv, receive) for kv in offered for receive in receives]
    thorough = bench.settings.thorough
    async with bench.new_run() as trainer:
        speed = await responsiveness(bench)
        across = _Across(bench, trainer, speed)
        for kv_cache, receive in modes:
            samples, off = await across.updates(kv_cache, receive, 1)
            crossed += sum(len(sample.spans) > 1 for sample in samples)
            worst = max(worst, off)
        for kv_cache in offered:
            _, off = await across.updates(kv_cache, receives[-1], SEVERAL)
            worst = max(worst, off)
        for receive in receives:
            hold_s = LONG_HOLD_S if thorough else HOLD_S
            worst = max(worst, await Arrivals(bench, trainer, receive, speed).check(hold_s))
        if "recompute" in offered:
            for _ in range(5 if thorough else 1):
                worst = max(worst, await reading_long_prompts(bench, trainer))
    tried = ", ".join(f"{kv} {receive}" for kv, receive in modes)
    return f"{crossed} requests crossed an update ({tried}), others arrived in it; off by {worst:.0e}"


class _Across:
    """Updates that requests cross."""

    def __init__(self, bench: Bench, trainer: TrainerPeer, speed: Responsiveness):
        self.bench = bench
        self.trainer = trainer
        self.speed = speed

    async def updates(self, kv_cache: str, receive: str, count: int) -> tuple[list[Sample], float]:
        """Publishes `count` versions while requests run. Returns them with the largest error, in nats."""
        bench = self.bench
        modes: dict[int, str] = {}
        crossing = Crossing(bench, modes)

        async def update() -> None:
            for _ in range(count):
                version = self.trainer.version + 1
                modes[version] = kv_cache
                await self.trainer.publish(
                    version, bench.weights(version), kv_cache=kv_cache, receive=receive
                )
                await self._resumed()

        def check(server: Server, sample: Sample) -> float:
            version = self.trainer.version
            versions = f"{count} versions up to {version}" if count > 1 else f"version {version}"
            where = f"{server}: publish {versions} with kv_cache {kv_cache} while this request runs"
            labels = [label for label, _, _ in sample.spans]
            if not set(labels) <= set(range(version - count, version + 1)):
                raise GuaranteeError(
                    f"spans {sample.spans}", f"only versions {version - count} to {version}", where
                )
            return crossing.check(sample, where)

        together = 4 * TOGETHER if bench.settings.thorough else TOGETHER
        return await complete_across(bench, self.trainer, update, check, together)

    async def _resumed(self) -> None:
        """Checks that a request just after `live` is answered about as quickly as on an idle server."""
        times = []
        for seed in range(TRIES):
            started = asyncio.get_running_loop().time()
            asked = [s.complete(self.bench.reference.prompt(9, seed), SHORT) for s in self.bench.servers]
            await asyncio.gather(*asked)
            times.append(asyncio.get_running_loop().time() - started)
            if times[-1] <= self.speed.limit_s:
                return
