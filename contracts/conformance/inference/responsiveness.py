"""How quickly the servers answer while they are idle: what time limits are measured against."""

import asyncio
from dataclasses import dataclass

from contracts.conformance.inference.bench import SHORT, Bench

GRACE_S = 2.0  # what a busy machine may add to any time
FACTOR = 5.0  # by which an answer may be slower than on the idle server
TRIES = 3  # measurements, all of which must be slow before that is a verdict


@dataclass(frozen=True)
class Responsiveness:
    """The time of a short completion on idle servers."""

    idle_s: float

    @property
    def limit_s(self) -> float:
        """The seconds in which a short completion must be answered where generation goes on."""
        return GRACE_S + FACTOR * self.idle_s


async def responsiveness(bench: Bench) -> Responsiveness:
    """Measures the slowest server's quickest short completion of three."""
    slowest = 0.0
    for server in bench.servers:
        times = []
        for seed in range(3):
            started = asyncio.get_running_loop().time()
            await server.complete(bench.reference.prompt(9, seed), SHORT)
            times.append(asyncio.get_running_loop().time() - started)
        slowest = max(slowest, min(times))
    return Responsiveness(slowest)
