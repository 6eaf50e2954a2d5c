"""Measures how quickly servers respond, for timeouts and to check that generation has resumed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.verdicts import GuaranteeError

GRACE_S = 1.5  # tolerance for a busy machine
FACTOR = 5.0  # factor by which a response may be slower than at another moment
TRIES = 3  # measurements that must all be slow for a verdict
FIRST_TOKENS = 4  # tokens of a request whose latency is measured


@dataclass(frozen=True)
class Responsiveness:
    """The time of a short completion on idle servers."""

    idle_s: float

    @property
    def limit_s(self) -> float:
        """Seconds within which a short completion must be answered unless generation is paused."""
        return GRACE_S + FACTOR * self.idle_s


async def responsiveness(bench: Bench) -> Responsiveness:
    """Measures the quickest of three short completions."""
    return Responsiveness(min([await _answer_s(bench, seed, SHORT) for seed in range(3)]))


async def short_answer_s(bench: Bench) -> float:
    """Returns the seconds until every server has responded with a few tokens."""
    return await _answer_s(bench, 3, FIRST_TOKENS)


async def _answer_s(bench: Bench, seed: int, tokens: int) -> float:
    started = asyncio.get_running_loop().time()
    prompt = bench.reference.prompt(9, seed)
    await asyncio.gather(*(server.complete(prompt, tokens) for server in bench.servers))
    return asyncio.get_running_loop().time() - started


def check_resumed(times: Sequence[float], limit_s: float, what: str) -> None:
    """Checks that one of the responses right after `live` took at most `limit_s`."""
    if min(times) > limit_s:
        raise GuaranteeError(
            f"{len(times)} times, a request sent just after `live` was answered after {min(times):.1f} s",
            f"an answer within {limit_s:.1f} s, as before: `live` means that generation has resumed",
            what,
        )
