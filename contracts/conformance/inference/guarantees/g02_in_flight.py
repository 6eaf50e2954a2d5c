"""G2: requests that run during an update complete with the right spans; requests that arrive then wait."""

from contracts.conformance.inference.arrivals import requests_arrive
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.crossing import Crossing
from contracts.conformance.inference.load import FEW, TOGETHER, complete_across
from contracts.conformance.inference.long_prompts import reading_long_prompts
from contracts.conformance.inference.mixed_load import some_wait
from contracts.conformance.inference.responsiveness import (
    FACTOR,
    TRIES,
    Responsiveness,
    check_resumed,
    responsiveness,
    short_answer_s,
)
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

BUSY = 3.0  # largest factor by which a machine that became busy raises a limit
SEVERAL = 3  # updates during one request
HOLD_S = 2.5  # pause between two buckets
LONG_HOLD_S = 65.0  # pause that exceeds usual timeouts of proxies


async def modes(bench: Bench) -> str:
    """Publishes weights while requests run, in every offered mode."""
    crossed = 0
    worst = 0.0
    receives = await bench.receive_modes()
    offered = await bench.offered("kv_cache")
    tried = [(kv, receive) for kv in offered for receive in receives]
    across = await _across(bench)
    for kv_cache, receive in tried:
        many = bench.settings.thorough or receive == receives[offered.index(kv_cache) % len(receives)]
        samples, off = await across.updates(kv_cache, receive, 1, TOGETHER if many else FEW)
        crossed += sum(len(sample.spans) > 1 for sample in samples)
        worst = max(worst, off)
    named = ", ".join(f"{kv} {receive}" for kv, receive in tried)
    return f"{crossed} requests crossed an update ({named}), off by {worst:.0e}"


async def several(bench: Bench) -> str:
    """Publishes several versions while requests run, in every offered mode."""
    receive = (await bench.receive_modes())[-1]
    across = await _across(bench)
    modes = await bench.offered("kv_cache")
    worst = max([(await across.updates(kv_cache, receive, SEVERAL, FEW))[1] for kv_cache in modes])
    return f"others crossed {SEVERAL} updates, off by {worst:.0e}"


async def arrivals(bench: Bench) -> str:
    """Publishes weights while requests arrive, in every offered mode."""
    hold_s = LONG_HOLD_S if bench.settings.thorough else HOLD_S
    trainer = await bench.run()
    speed = await responsiveness(bench)
    receives = await bench.receive_modes()
    worst = max([await requests_arrive(bench, trainer, receive, speed, hold_s) for receive in receives])
    return f"others arrived in it, off by {worst:.0e}"


async def prompts(bench: Bench) -> str:
    """Publishes weights while long prompts are processed, with `recompute`."""
    if "recompute" not in await bench.offered("kv_cache"):
        raise NotDeclaredError("kv_cache recompute is not offered")
    trainer = await bench.run()
    tries = 5 if bench.settings.thorough else 1
    worst = max([await reading_long_prompts(bench, trainer) for _ in range(tries)])
    return f"long prompts were read in it, off by {worst:.0e}"


PARTS = {
    "modes": modes,
    "several": several,
    "arrivals": arrivals,
    "prompts": prompts,
}


async def _across(bench: Bench) -> "_Across":
    return _Across(bench, await bench.run(), await responsiveness(bench))


class _Across:
    def __init__(self, bench: Bench, trainer: TrainerPeer, speed: Responsiveness):
        self.bench = bench
        self.trainer = trainer
        self.speed = speed

    async def _limit_s(self) -> float:
        """Returns the seconds within which a short completion is answered unless generation is paused."""
        return FACTOR * await short_answer_s(self.bench) + self.speed.limit_s

    async def updates(
        self, kv_cache: str, receive: str, count: int, together: int
    ) -> tuple[list[Sample], float]:
        """Publishes `count` versions while `together` requests run on each server.

        Returns the responses, and the largest error in nats.
        """
        bench = self.bench
        modes: dict[int, str] = {}
        crossing = Crossing(bench, modes)

        async def publish() -> None:
            version = self.trainer.version + 1
            modes[version] = kv_cache
            await self.trainer.publish(version, bench.weights(version), kv_cache=kv_cache, receive=receive)

        async def resumed() -> float:
            await publish()
            return await short_answer_s(bench)

        async def update() -> None:
            if await some_wait(bench.servers):  # another request would be answered only after all queued ones
                for _ in range(count):
                    await publish()
                return
            idle_s = await self._limit_s()
            for _ in range(count):
                limit_s = idle_s
                times = [await resumed()]
                while times[-1] > limit_s and len(times) < TRIES:
                    times.append(await resumed())
                    # The machine may have become busy.
                    limit_s = max(limit_s, min(await self._limit_s(), BUSY * idle_s))
                check_resumed(times, limit_s, f"publish version {self.trainer.version}, {kv_cache} {receive}")

        def check(server: Server, sample: Sample) -> float:
            where = f"{server}: publish {kv_cache} versions {list(modes)} while this request runs"
            known = {min(modes) - 1, *modes}
            if not {label for label, _, _ in sample.spans} <= known:
                raise GuaranteeError(f"spans {sample.spans}", f"only versions {sorted(known)}", where)
            return crossing.check(sample, where)

        return await complete_across(bench, self.trainer, update, check, together)
