"""What a judgement of an answer to a mathematical problem costs, and how often it is the expected one.

python -m benchmarks.judge [--workers 2] [--timeout-s 5]
"""

import asyncio
import json
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from contracts.support.command_line import command_parser
from extensions.math.domain import VERIFIER
from pipelinerl.judging.child import judging_service
from pipelinerl.judging.client import JudgingClient
from pipelinerl.judging.options import JudgingConfig

ANSWERS = Path(__file__).parents[1] / "tests" / "extensions" / "math" / "math_answers.jsonl"


class Pair(NamedTuple):
    kind: str
    gold: str
    answer: str
    expected: str
    decidable: bool  # whether math-verify can decide it


class Judged(NamedTuple):
    pair: Pair
    outcome: str  # without its reason
    seconds: float


def pairs() -> list[Pair]:
    return [_pair(json.loads(line)) for line in ANSWERS.read_text().splitlines()]


def _pair(line: dict) -> Pair:
    if repeat := line.get("repeat"):
        line["answer"] = repeat["before"] + repeat["text"] * repeat["times"] + repeat["after"]
    return Pair(line["kind"], line["gold"], line["answer"], line["expected"], not line.get("undecidable"))


def options(workers: int, verdict_s: float) -> JudgingConfig:
    """Returns the configuration of a service that judges only mathematics."""
    return JudgingConfig(
        workers=workers, verdict_s=verdict_s, max_characters=2000, verifiers={"math": {"_target_": VERIFIER}}
    )


async def judged(judge: JudgingClient, chosen: list[Pair], at_once: int) -> list[Judged]:
    slots = asyncio.Semaphore(at_once)

    async def one(pair: Pair) -> Judged:
        async with slots:
            start = time.monotonic()
            judgement = await judge.judged("math", pair.gold, pair.answer)
            return Judged(pair, judgement.word, time.monotonic() - start)

    return await asyncio.gather(*map(one, chosen))


async def main() -> None:
    parser = command_parser("benchmarks.judge", __doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout-s", type=float, default=5.0)
    given = parser.parse_args()
    async with judging_service(options(given.workers, given.timeout_s)) as judge:
        results = await judged(judge, pairs(), given.workers)
    for name, chosen in [
        ("ordinary", [r for r in results if r.pair.kind != "hostile"]),
        ("hostile", [r for r in results if r.pair.kind == "hostile"]),
    ]:
        seconds = np.array([r.seconds for r in chosen])
        undecided = sum(r.outcome == "undecided" for r in chosen)
        agreed = sum(r.outcome == r.pair.expected for r in chosen)
        median, late = np.quantile(seconds, [0.5, 0.95])
        print(
            f"{name}: {len(chosen)} answers, {agreed} as expected, {undecided} undecided; "
            f"median {1000 * median:.1f} ms, 95 % within {1000 * late:.0f} ms, longest {seconds.max():.1f} s"
        )


if __name__ == "__main__":
    asyncio.run(main())
