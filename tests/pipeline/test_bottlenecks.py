"""A run that the servers bound says so, and its processes record all from which other bounds are found."""

import json
from pathlib import Path

import pytest

from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.spans import spans_path
from tests.pipeline.runs import run_to_the_end

SETTINGS = ("batch_size=16", "max_steps=25", "eval.problems=1", "checkpoint.every=null", "probe.every=1000")
SLOW_SERVER = ("inference.concurrency=4", "+inference.arguments.token-delay-s=0.05")
KL = "regularisers=[{_target_: pipelinerl.objectives.kl.KlToReference, coefficient: 0.01}]"
JUDGED = ("domain._target_=tests.judging.domains.SlowlyJudged", "+domain.seconds=0.001")


@pytest.mark.long
def test_a_run_of_a_slow_server_is_generation_bound(tmp_path):
    run = tmp_path / "run"
    summary = run_to_the_end(run, *SETTINGS, *SLOW_SERVER, *JUDGED, "reference=scripted", KL)
    measured = summary["bottleneck_measured"]
    assert summary["bottleneck"].startswith("generation bound: "), measured
    assert "of the request slots were in use" in summary["bottleneck"]
    assert list(read_metrics(metrics_path(run, "run")))[-1]["bottleneck_generation"] == 1.0
    shares = ("wait", "learn", "publish", "busy", "outside", "scoring", "judging", "useful")
    assert all(measured[name] > 0 for name in shares), measured
    assert all(measured["phases"][name] > 0 for name in ("open", "gather", "send", "confirm")), measured
    assert {line["n"] for line in spans_of(run, "trainer-0")} == {
        *("wait", "learn", "optimizer", "publish", "open", "send", "confirm", "probe"),
    }
    assert {line["n"] for line in spans_of(run, "actor")} == {"places", "evaluation"}
    assert_first_versions_probed(run)


def assert_first_versions_probed(run: Path) -> None:
    """Those of a launch, the one before training too, however seldom others are."""
    lines = list(read_metrics(metrics_path(run, "trainer")))
    probed = [line for line in lines if "logprob_gap_max_abs" in line]
    assert [line["step"] for line in probed] == [0, 1, 2]
    assert all(line["probe_unanswered"] == 0 and line["logprob_gap_max_abs"] < 1e-5 for line in probed)
    first_step = next(line for line in lines if "loss" in line)
    assert lines.index(probed[0]) < lines.index(first_step)


def spans_of(run: Path, process: str) -> list[dict]:
    return [json.loads(line) for line in spans_path(run, process).read_text().splitlines()]
