"""Whole runs with faults: each goes on, and nothing is lost."""

from dataclasses import replace

import pytest

from benchmarks.chaos.plan import Fault, draw_plan
from benchmarks.chaos.recovery import Recovery
from benchmarks.chaos.running import Outcome, Result, run_plan
from benchmarks.chaos.saved import json_line, result_of
from benchmarks.chaos.table import faults_table, kinds_table
from pipelinerl.paths import ROOT
from tests.pipeline.runs import SEED

WITHIN_S = 180.0  # without a step; also of the first one, which waits until everything is imported
REAL_WITHIN_S = 300.0  # the model is made at the first start
PARTS = 25  # of `make soak`, a run each
FAULTS = 20  # in each of them
FAULTS_ON_RAY = 10
RESULTS = ROOT / "runs" / "chaos"


def assert_all_done(result: Result) -> None:
    assert result.failures == [], "\n".join(result.failures)
    assert len(result.outcomes) == len(result.plan.faults)
    assert not any(outcome.skipped for outcome in result.outcomes)


def test_a_result_is_a_line_of_json_and_rows_of_tables():
    plan = draw_plan(2, 2, "scripted", 1.0)
    kill = Fault("kill", "server-0", after_steps=0, delay_s=0.1)
    stop = Fault("stop", "trainer-0", after_steps=1, delay_s=0.0, seconds=30.0)
    outcomes = [Outcome(kill, 4.25, Recovery(noticed_s=1.0, recovered_s=2.5)), Outcome(stop, 9.0, Recovery())]
    result = Result(replace(plan, faults=(kill, stop)), outcomes, steps=3)
    assert "| kill | server-0 | 4.2 s | 1.0 s | 2.5 s | ok |" in faults_table(result)
    assert "| stop for 30 s | trainer-0 | 9.0 s | – | – | ok |" in faults_table(result)
    assert "| kill server | 1 | 1.0 s | 1.0 s | 2.5 s | 2.5 s | 0 |" in kinds_table([result])
    assert '"failures": []' in json_line(result) and result_of(json_line(result)) == result


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_a_drawn_run_survives(tmp_path, part):
    seed = PARTS * SEED + part
    result = run_plan(draw_plan(seed, FAULTS, "scripted", 90.0), tmp_path / f"{seed}", WITHIN_S)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{seed}.json").write_text(json_line(result) + "\n")
    print(f"\nseed {seed}: {result.plan.shape}\n{faults_table(result)}")
    assert_all_done(result)


@pytest.mark.long
def test_a_run_on_ray_survives_ten_faults(tmp_path):
    plan = draw_plan(SEED, FAULTS_ON_RAY, "scripted", 90.0, "ray")
    result = run_plan(plan, tmp_path / "ray", WITHIN_S)
    print(f"\nseed {SEED}: {plan.shape}\n{faults_table(result)}")
    assert_all_done(result)


@pytest.mark.long
@pytest.mark.parametrize("weights", ["relay", "shared"])
def test_a_run_with_other_weights_survives(tmp_path, weights):
    plan = draw_plan(SEED, FAULTS, "scripted", 90.0, weights=weights)
    result = run_plan(plan, tmp_path / weights, WITHIN_S)
    print(f"\nseed {SEED}: {plan.shape}\n{faults_table(result)}")
    assert_all_done(result)


@pytest.mark.long
def test_a_run_of_real_engines_survives(tmp_path):
    plan = draw_plan(SEED, FAULTS, "real", 90.0)
    result = run_plan(plan, tmp_path / "real", REAL_WITHIN_S)
    print(f"\nseed {SEED}: {plan.shape}\n{faults_table(result)}")
    assert_all_done(result)
