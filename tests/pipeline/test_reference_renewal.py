"""A whole run whose reference is renewed: each row is scored by the version of the rule, whatever hangs."""

import json
import os
import signal
from pathlib import Path

import numpy as np

from contracts.records import MicroBatchRow, Restarted, StepClosed
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.process import REFERENCE_VARIABLE
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    job_pid,
    listener,
    records,
    start,
    wait_for_record,
)
from tests.step_gate import StepGate

EVERY = 4
STEPS = 16
RENEWED = (
    "++domain._target_=tests.letters_domain.LettersDomain",
    "filters=[]",
    "schedule=conventional",
    "sampling.seeded=true",
    "reference=scripted",
    f"reference.renew_every={EVERY}",
    "regularisers=[{_target_: pipelinerl.objectives.kl.KlToReference, coefficient: 0.01}]",
    "optimizer.lr=0.05",
    f"max_steps={STEPS}",
    "checkpoint.every=7",
    "eval.every=null",
    "world.trainer_ranks=2",
    "seed=3",
    "rollout.timeout_s=4",
    "world.stop_timeout_s=1",
)


def rows_of(run: Path) -> dict[int, list[MicroBatchRow]]:
    """The rows of each step that was trained, from the last time that it was."""
    rows: dict[int, list[MicroBatchRow]] = {}
    for row in records(run, "rows"):
        if row.index == 0:
            rows[row.step] = []
        rows[row.step].append(row)
    return {step: rows[step] for step in range(STEPS)}  # without those formed ahead of the last step


def largest_difference(rows: list[MicroBatchRow]) -> float:
    """Of the log-probabilities of the sampled tokens: those by the servers and those by the reference."""
    sequences = [s for row in rows for micro_batch in row.micro_batches for s in micro_batch]
    return max(np.abs(s.behaviour_logprobs - s.reference_logprobs)[s.loss_mask].max() for s in sequences)


def test_each_row_is_scored_by_the_policy_of_the_last_renewal_though_the_server_hangs(tmp_path):
    """Its schedule is the conventional one, so all is trained by the weights that sampled it."""
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=EVERY + 1)
    launcher = start(run, *RENEWED, *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed, count=EVERY + 1)
    os.kill(reference_pid(run), signal.SIGSTOP)
    gate.open()
    status, err = finish(launcher)
    assert status == 0, err
    (restarted,) = [r for r in records(run, "launcher_events") if isinstance(r, Restarted)]
    assert restarted.names == ["reference"] and "hung (it left /score without an answer" in restarted.why
    for step, rows in rows_of(run).items():
        assert {row.reference_version for row in rows} == {step - step % EVERY}
    differences = {step: largest_difference(rows) for step, rows in rows_of(run).items()}
    at_renewals = [differences.pop(step) for step in (4, 8, 12)]  # there the reference has sampled them
    assert max(at_renewals) < 1e-5 < 1e-3 < min(differences.values())
    versions = [line["reference_version"] for line in read_metrics(metrics_path(run, "preprocessor"))]
    assert set(versions) == {0, 4, 8, 12} and versions == sorted(versions)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["lag_max"] == 0 and summary["sequences_multi_version"] == 0
    assert_accounted(run)


def reference_pid(run: Path) -> int:
    environment = Path(f"/proc/{job_pid(run, 'pipelinerl.preprocessor')}/environ").read_text().split("\0")
    (url,) = [line.partition("=")[2] for line in environment if line.startswith(REFERENCE_VARIABLE)]
    return listener(url)
