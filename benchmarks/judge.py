"""What a verdict of the math judge costs, and how often it is the expected one.

python -m benchmarks.judge [--workers 2] [--timeout-s 5]
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipelinerl.domains.math.judge import Judge, Verdict

VERDICTS = Path(__file__).parents[1] / "tests" / "domains" / "math" / "verdicts.jsonl"


class Pair(NamedTuple):
    kind: str
    gold: str
    answer: str
    expected: str
    decidable: bool  # by math-verify


class Judged(NamedTuple):
    pair: Pair
    verdict: Verdict
    seconds: float


def pairs() -> list[Pair]:
    return [_pair(json.loads(line)) for line in VERDICTS.read_text().splitlines()]


def _pair(line: dict) -> Pair:
    if repeat := line.get("repeat"):
        line["answer"] = repeat["before"] + repeat["text"] * repeat["times"] + repeat["after"]
    return Pair(line["kind"], line["gold"], line["answer"], line["expected"], not line.get("undecidable"))


async def judged(judge: Judge, chosen: list[Pair], at_once: int) -> list[Judged]:
    slots = asyncio.Semaphore(at_once)

    async def one(pair: Pair) -> Judged:
        async with slots:
            start = time.monotonic()
            verdict = await judge(pair.answer, pair.gold)
            return Judged(pair, verdict, time.monotonic() - start)

    return await asyncio.gather(*map(one, chosen))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout-s", type=float, default=5.0)
    options = parser.parse_args()
    judge = Judge(options.workers, options.timeout_s, memory_bytes=4 << 30, max_characters=2000)
    await judged(judge, [Pair("", "1", r"\boxed{1}", "right", True)] * options.workers, options.workers)
    results = await judged(judge, pairs(), options.workers)
    for name, chosen in [
        ("ordinary", [r for r in results if r.pair.kind != "hostile"]),
        ("hostile", [r for r in results if r.pair.kind == "hostile"]),
    ]:
        seconds = np.array([r.seconds for r in chosen])
        undecided = sum(r.verdict == Verdict.UNDECIDED for r in chosen)
        agreed = sum(r.verdict == r.pair.expected for r in chosen)
        median, late = np.quantile(seconds, [0.5, 0.95])
        print(
            f"{name}: {len(chosen)} answers, {agreed} as expected, {undecided} undecided; "
            f"median {1000 * median:.1f} ms, 95 % within {1000 * late:.0f} ms, longest {seconds.max():.1f} s"
        )
    judge.close()


if __name__ == "__main__":
    asyncio.run(main())
