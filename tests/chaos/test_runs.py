"""Whole runs with faults: each goes on, and nothing is lost."""

import psutil
import pytest

from benchmarks.chaos.plan import draw_plan
from benchmarks.chaos.running import Result, run_plan
from benchmarks.chaos.saved import json_line, result_of
from benchmarks.chaos.table import faults_table
from pipelinerl.paths import ROOT
from tests.pipeline.runs import SEED

WITHIN_S = 180.0  # without a step; also of the first one, which waits until everything is imported
REAL_WITHIN_S = 300.0  # the model is made at the first start
PARTS = 25  # of `make soak`, a run each
FAULTS = 20  # in each of them
FAULTS_IN_TURNS = 40
FAULTS_ON_RAY = 10
RESULTS = ROOT / "runs" / "chaos"
AGENT = str(ROOT / "examples" / "agents" / "guessing.py")


def assert_all_done(result: Result) -> None:
    assert result.failures == [], "\n".join(result.failures)
    assert len(result.outcomes) == len(result.plan.faults)
    assert not any(outcome.skipped for outcome in result.outcomes)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_a_drawn_run_survives(tmp_path, part):
    seed = PARTS * SEED + part
    result = run_plan(draw_plan(seed, FAULTS, "scripted", 90.0), tmp_path / f"{seed}", WITHIN_S)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{seed}.json").write_text(json_line(result) + "\n")
    assert result_of(json_line(result)) == result
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
def test_a_run_of_agents_survives_and_leaves_no_program(tmp_path):
    result = run_plan(draw_plan(SEED, FAULTS, "agents", 90.0), tmp_path / "agents", REAL_WITHIN_S)
    print(f"\nseed {SEED}: {result.plan.shape}\n{faults_table(result)}")
    assert_all_done(result)
    commands = [each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"])]
    assert [command for command in commands if AGENT in command] == []


@pytest.mark.long
@pytest.mark.parametrize("schedule", [None, "colocated"], ids=["drawn", "colocated"])
def test_a_run_of_real_engines_survives(tmp_path, schedule):
    """In turns, faults strike in either phase."""
    plan = draw_plan(SEED, FAULTS_IN_TURNS if schedule else FAULTS, "real", 90.0, schedule=schedule)
    result = run_plan(plan, tmp_path / "real", REAL_WITHIN_S)
    print(f"\nseed {SEED}: {plan.shape}\n{faults_table(result)}")
    assert_all_done(result)
