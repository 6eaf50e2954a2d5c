"""Runs that are each made to be bounded by one thing say so, and by what of it."""

import json

import pytest

from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.spans import spans_path
from tests.pipeline.runs import finish, start

QUICK = ("batch_size=16", "max_steps=25", "eval.problems=1", "checkpoint.every=null", "probe.every=1000")
SLOW_SERVER = ("inference.concurrency=4", "+inference.arguments.token-delay-s=0.05")
RUNS = {
    "generation bound": SLOW_SERVER,
    "training bound": ("objective._target_=tests.slow_objective.Slow",),
    "update bound": ("trainer._target_=tests.slow_gather.SlowGather",),
    "verifier bound": (
        "domain._target_=tests.judging.domains.SlowlyJudged",
        "+domain.seconds=0.2",
        "judging.workers=1",
        "filters=[]",
        "batch_size=8",
        "max_steps=6",
    ),
    "reference bound": (
        "reference=scripted",
        "reference.module=tests.slow_engine",
        "+reference.arguments.slow-in=score",
    ),
}


def run_of(run_dir, *overrides: str) -> dict:
    """The summary of a run that must succeed."""
    launcher = start(run_dir, *QUICK, *overrides)
    status, err = finish(launcher)
    assert status == 0, err
    return json.loads((run_dir / "summary.json").read_text())


def assert_bounded(run_dir, head: str) -> dict:
    summary = run_of(run_dir, *RUNS[head])
    assert summary["bottleneck"].startswith(f"{head}: "), summary["bottleneck_measured"]
    last = list(read_metrics(metrics_path(run_dir, "run")))[-1]
    assert last[f"bottleneck_{head.split()[0]}"] == 1.0
    return summary


@pytest.mark.long
def test_a_run_of_a_slow_server_is_generation_bound(tmp_path):
    summary = assert_bounded(tmp_path / "run", "generation bound")
    assert "of the places were taken" in summary["bottleneck"]
    assert {line["n"] for line in spans_of(tmp_path / "run", "trainer-0")} == {
        *("wait", "learn", "optimizer", "publish", "open", "send", "confirm", "probe"),
    }
    assert {line["n"] for line in spans_of(tmp_path / "run", "actor")} == {"places", "evaluation"}
    assert_first_versions_probed(tmp_path / "run")


def assert_first_versions_probed(run_dir) -> None:
    """Those of a launch, the one before training too, however seldom others are."""
    lines = list(read_metrics(metrics_path(run_dir, "trainer")))
    probed = [line for line in lines if "logprob_gap_max_abs" in line]
    assert [line["step"] for line in probed] == [0, 1, 2]
    assert all(line["probe_unanswered"] == 0 and line["logprob_gap_max_abs"] < 1e-5 for line in probed)
    first_step = next(line for line in lines if "loss" in line)
    assert lines.index(probed[0]) < lines.index(first_step)


def spans_of(run_dir, process: str) -> list[dict]:
    return [json.loads(line) for line in spans_path(run_dir, process).read_text().splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("head", [head for head in RUNS if head != "generation bound"])
def test_what_bounds_a_run_is_named(tmp_path, head):
    summary = assert_bounded(tmp_path / "run", head)
    if head == "update bound":
        assert "of it to gather" in summary["bottleneck"]


@pytest.mark.long
def test_servers_that_are_slow_to_apply_weights_are_named_by_their_phase(tmp_path):
    slow = ("inference.module=tests.slow_engine", "+inference.arguments.slow-in=receive")
    assert "of it to confirm" in run_of(tmp_path / "run", *slow)["bottleneck"]
