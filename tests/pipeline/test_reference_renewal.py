"""Whole runs whose reference is renewed: each row is scored by the version of the rule, whatever dies."""

import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from contracts.records import CheckpointSaved, MicroBatchRow, Restarted, StepClosed
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.process import REFERENCE_VARIABLE
from pipelinerl.training.checkpoints import Checkpoints
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    job_pid,
    launch,
    listener,
    records,
    resumptions_of,
    start,
    wait_for,
    wait_for_record,
)

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
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    status, err = finish(start(run, *RENEWED))
    assert status == 0, err
    return run


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """Returns a run whose reference server was killed after the first renewal."""
    run = tmp_path_factory.mktemp("killed") / "run"
    launcher = start(run, *RENEWED)
    wait_for_record(run, "trainer_events", StepClosed, count=EVERY + 1)
    os.kill(reference_pid(run), signal.SIGKILL)
    status, err = finish(launcher)
    assert status == 0, err
    return run


def rows_of(run: Path) -> dict[int, list[MicroBatchRow]]:
    """The rows of each step that was trained, from the last time that it was."""
    rows: dict[int, list[MicroBatchRow]] = {}
    for row in records(run, "rows"):
        if row.index == 0:
            rows[row.step] = []
        rows[row.step].append(row)
    return {step: rows[step] for step in range(STEPS)}  # without those formed ahead of the last step


def scores(run: Path) -> Counter:
    """The step, the reference's version, the tokens and the scores of each sequence, as bits."""
    return Counter(
        (step, row.reference_version, s.token_ids.tobytes(), s.reference_logprobs.tobytes())
        for step, rows in rows_of(run).items()
        for row in rows
        for micro_batch in row.micro_batches
        for s in micro_batch
    )


def largest_difference(rows: list[MicroBatchRow]) -> float:
    """Of the log-probabilities of the sampled tokens: those by the servers and those by the reference."""
    sequences = [s for row in rows for micro_batch in row.micro_batches for s in micro_batch]
    return max(np.abs(s.behaviour_logprobs - s.reference_logprobs)[s.loss_mask].max() for s in sequences)


def test_each_row_is_scored_by_the_policy_of_the_last_renewal_though_the_server_dies(killed):
    (restarted,) = [r for r in records(killed, "launcher_events") if isinstance(r, Restarted)]
    assert restarted.names == ["reference"]
    for step, rows in rows_of(killed).items():
        assert {row.reference_version for row in rows} == {step - step % EVERY}
    differences = {step: largest_difference(rows) for step, rows in rows_of(killed).items()}
    at_renewals = [differences.pop(step) for step in (4, 8, 12)]  # there the reference has sampled them
    assert max(at_renewals) < 1e-5 < 1e-3 < min(differences.values())
    assert_accounted(killed)


def test_the_metrics_show_the_version_of_the_reference(killed):
    versions = [line["reference_version"] for line in read_metrics(metrics_path(killed, "preprocessor"))]
    assert set(versions) == {0, 4, 8, 12} and versions == sorted(versions)


def test_the_weights_are_kept_that_a_checkpoint_needs(killed):
    checkpoints = Checkpoints(killed)
    assert [position.version for position in checkpoints.complete_checkpoints()] == [14, 16]
    kept = sorted(file.name for file in checkpoints.reference(0).parent.iterdir())
    assert kept == ["00000004.pt", "00000012.pt"]


def reference_pid(run: Path) -> int:
    environment = Path(f"/proc/{job_pid(run, 'pipelinerl.preprocessor')}/environ").read_text().split("\0")
    (url,) = [line.partition("=")[2] for line in environment if line.startswith(REFERENCE_VARIABLE)]
    return listener(url)


@pytest.mark.long
def test_a_server_that_has_died_scores_as_if_it_had_not(killed, undisturbed):
    assert scores(killed) == scores(undisturbed)


@pytest.mark.long
def test_workers_that_begin_again_find_the_reference_of_their_version(tmp_path, undisturbed):
    """The reference server has been renewed since their checkpoint, so it must take older weights."""
    run = tmp_path / "run"
    launcher = start(run, *RENEWED)
    wait_for(lambda: any(row.reference_version == 8 for row in records(run, "rows")))
    os.kill(job_pid(run, "pipelinerl.trainer"), signal.SIGKILL)
    status, err = finish(launcher)
    assert status == 0, err
    assert [resumed.version for resumed in resumptions_of(run)] == [7]
    assert scores(run) == scores(undisturbed)


@pytest.mark.long
def test_a_run_that_resumes_takes_up_the_reference_of_its_last_renewal(tmp_path, undisturbed):
    run = tmp_path / "run"
    launcher = start(run, *RENEWED, "restarts=0")
    wait_for_record(run, "trainer_events", CheckpointSaved)
    os.kill(job_pid(run, "pipelinerl.trainer"), signal.SIGKILL)
    assert finish(launcher)[0] == 1
    status, err = finish(launch(run, "resume=7"))
    assert status == 0, err
    assert scores(run) == scores(undisturbed)
    assert_accounted(run)
