"""`+exp=math_7b +scale=cpu`: the experiment's own path on two cores. vLLM twice, DeepSpeed twice, Redis, the
judge, evaluation, checkpoints; a rank is killed in the middle, and the run goes on by itself."""

import json
import os
import signal
from collections import Counter

import pytest
from transformers import AutoModelForCausalLM

from contracts.records import CheckpointSaved, Evaluated, Restarted, StepClosed, WeightsPublished
from extensions.redis_streams.connection import REDIS_VARIABLE
from pipelinerl.metrics import metrics_path, read_metrics
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    job_pid,
    launch_command,
    processes_of,
    records,
    wait_for_record,
)

pytestmark = pytest.mark.long

STEPS = 6


def test_the_experiment_runs_on_two_cores_and_goes_on_when_a_rank_is_killed(tmp_path, monkeypatch):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    run = tmp_path / "run"
    launcher = launch_command(run, "+exp=math_7b", "+scale=cpu")
    wait_for_record(run, "trainer_events", CheckpointSaved)
    os.kill(job_pid(run, "pipelinerl.trainer"), signal.SIGKILL)
    status, err = finish(launcher)
    assert status == 0, err
    assert not processes_of(run)
    (restarted,) = [e for e in records(run, "launcher_events") if isinstance(e, Restarted)]
    assert "killed by signal 9" in restarted.why

    summary = json.loads((run / "summary.json").read_text())
    assert (summary["optimizer_steps"], summary["resumed"]) == (STEPS, 1)
    assert len(assert_accounted(run)["trained"]) == STEPS * 4
    published = [e for e in records(run, "trainer_events") if isinstance(e, WeightsPublished)]
    assert all(len(event.servers) == 2 for event in published)
    steps = [e for e in records(run, "trainer_events") if isinstance(e, StepClosed)]
    assert not any(step.skipped for step in steps) and all(step.tokens for step in steps)
    assert {e.version for e in records(run, "actor_events") if isinstance(e, Evaluated)} >= {0, STEPS}
    judged = [rollout for rollout in records(run, "rollouts") if not rollout.failed]
    outcomes = Counter(name for r in judged for name, said in r.metrics.items() if said and "judged" in name)
    assert outcomes["judged_wrong"] and outcomes["judged_right"]
    assert outcomes["judged_undecided"] < len(judged) / 100  # what is sampled can be beyond any limit
    assert all(rollout.domain == "orz_57k" for rollout in judged)
    gaps = [
        line["logprob_gap_mean_abs"]
        for line in read_metrics(metrics_path(run, "trainer"))
        if "logprob_gap_mean_abs" in line
    ]
    assert gaps and max(gaps) < 0.05  # bfloat16 on both sides
    AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "final")
