"""The judge against verdicts that a person expects, and against answers that attack it.

verdicts.jsonl: a reference (`gold`), a model's answer (or how to `repeat` a text to make it), and what a
person says of it. `undecidable`: math-verify sees it otherwise, as the `note` says. Hostile answers may also
end undecided.
"""

import asyncio
import signal
import subprocess
import sys

import psutil
import pytest

from benchmarks.judge import Pair, judged, pairs
from pipelinerl.domains.math.judge import Judge, Verdict
from pipelinerl.paths import ROOT
from tests.pipeline.runs import wait_for
from tests.rotation import quarter

WORKERS = 2
HOSTILE = [pair for pair in pairs() if pair.kind == "hostile" and pair.decidable]


@pytest.fixture
def judge():
    judge = Judge(WORKERS, timeout_s=2.0, memory_bytes=4 << 30, max_characters=2000)
    yield judge
    judge.close()


@pytest.mark.asyncio
async def test_every_decidable_verdict_is_the_expected_one(judge):
    chosen = [pair for pair in pairs() if pair.kind != "hostile" and pair.decidable]
    assert len(chosen) >= 300
    results = await judged(judge, chosen, WORKERS)
    assert [(r.pair, r.verdict) for r in results if r.verdict != r.pair.expected] == []


@pytest.mark.asyncio
async def test_hostile_answers_cost_themselves_and_no_worker(judge):
    await assert_withstood(judge, HOSTILE[::10])


@pytest.mark.engines
@pytest.mark.asyncio
async def test_all_hostile_answers_in_four_runs(judge):
    assert len(HOSTILE) > 150
    await assert_withstood(judge, quarter(HOSTILE))


async def assert_withstood(judge: Judge, chosen: list[Pair]) -> None:
    results = await judged(judge, chosen, WORKERS)
    unexpected = [r for r in results if r.verdict not in (r.pair.expected, Verdict.UNDECIDED)]
    assert unexpected == []
    assert any(
        r.verdict == Verdict.UNDECIDED and len(r.pair.answer) < 100 for r in results
    )  # ran out of time
    assert await judge(r"\boxed{\frac{4}{2}}", "2") == Verdict.RIGHT


@pytest.mark.asyncio
async def test_a_worker_that_dies_idle_is_replaced(judge):
    assert await judge(r"\boxed{\frac{4}{2}}", "2") == Verdict.RIGHT
    for worker in psutil.Process().children():
        if "spawn_main" in " ".join(worker.cmdline()):
            worker.kill()
    wait_for(lambda: not judge._pool.active, within_s=10)
    chosen = [judge(r"\boxed{\frac{4}{2}}", "2") for _ in range(2 * WORKERS)]
    assert set(await asyncio.gather(*chosen)) == {Verdict.RIGHT}


@pytest.mark.asyncio
async def test_memory_is_limited_whatever_is_compared():
    judge = Judge(1, timeout_s=60.0, memory_bytes=4 << 30, max_characters=2000, compare=as_many_bytes)
    assert await judge(rf"\boxed{{{2**33}}}", "") == Verdict.UNDECIDED
    assert await judge(rf"\boxed{{{2**10}}}", "") == Verdict.RIGHT
    judge.close()


def as_many_bytes(reference: str, answer: str) -> bool:
    return len(bytearray(int(answer))) == int(answer)


LOST = """
import asyncio, os
from pipelinerl.domains.math.judge import Judge

async def main():
    judge = Judge(1, timeout_s=60.0, memory_bytes=4 << 30, max_characters=2000)
    await judge(r"\\boxed{1}", "1")
    endless = asyncio.create_task(judge(r"\\boxed{9^{9^{9^{9}}}}", "1"))
    await asyncio.sleep(0.5)
    print("busy", flush=True)
    await endless

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word that a parent died is Linux's")
def test_no_worker_outlives_the_process_that_asks(tmp_path):
    (tmp_path / "asks.py").write_text(LOST)
    asks = subprocess.Popen(
        [sys.executable, tmp_path / "asks.py"],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert asks.stdout.readline() == "busy\n"
    workers = psutil.Process(asks.pid).children()
    assert workers
    asks.send_signal(signal.SIGKILL)
    asks.wait()
    _, left = psutil.wait_procs(workers, timeout=10)
    assert left == []
