"""Whole runs with faults: each goes on, and nothing is lost."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.plan import Fault, Plan, draw_plan
from benchmarks.chaos.running import Result, run_plan
from benchmarks.chaos.table import faults_table, json_line, kinds_table
from tests.forked import Forked
from tests.pipeline.runs import SEED

WITHIN_S = 60.0
PARTS = 5  # of `make soak`
RUNS = 5  # in each
FEW = (
    Fault("truncate log", "actor", after_steps=0, delay_s=0.0),
    Fault("stop", "server-0", after_steps=0, delay_s=0.0, seconds=1.0),
    Fault("kill", "server-0", after_steps=0, delay_s=0.1),
    Fault("kill", "actor", after_steps=1, delay_s=0.1),
)


def start(arguments, environment, shown: Path, said: Path) -> Forked:
    return Forked(*arguments, environment=environment, outputs=[shown, said])


def assert_survived(result: Result, number: int) -> None:
    assert result.failures == [], "\n".join(result.failures)
    assert len(result.outcomes) == number and result.steps > number
    assert f"| kill | server-0 | {result.outcomes[2].at_s:.1f} s |" in faults_table(result)
    assert "| kill server | 1 |" in kinds_table([result])
    assert '"failures": []' in json_line(result)


def test_a_run_survives_four_faults(tmp_path):
    shape = replace(draw_plan(2, 1, "scripted", 1.0).shape, servers=1, ranks=1, streams="files")
    result = run_plan(Plan(2, shape, FEW), tmp_path / "chaos", WITHIN_S, start)
    assert_survived(result, 4)


@pytest.mark.engines  # for its time
def test_a_run_survives_twenty_faults(tmp_path):
    result = run_plan(draw_plan(SEED, 20, "scripted", 3.0), tmp_path / "chaos", WITHIN_S, start)
    assert result.failures == [], "\n".join(result.failures)
    assert len(result.outcomes) == 20


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_runs_survive(tmp_path, part):
    first = (PARTS * SEED + part) * RUNS
    results = []
    for seed in range(first, first + RUNS):
        results.append(run_plan(draw_plan(seed, 20, "scripted", 90.0), tmp_path / f"{seed}", within_s=180.0))
        print(f"\nseed {seed}\n{faults_table(results[-1])}")
    print(f"\n{kinds_table(results)}")
    failures = [f"seed {result.plan.seed}: {failure}" for result in results for failure in result.failures]
    assert failures == [], "\n".join(failures)
