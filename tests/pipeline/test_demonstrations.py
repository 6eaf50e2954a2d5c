"""Whole runs on demonstrations: the books, the tokens of the rows, the pages, and a resumption."""

import json
from pathlib import Path

import numpy as np

from contracts.records import MicroBatchRow, TrainingSequence
from extensions.viewer.records.show import describe_row
from pipelinerl.metrics import metrics_path, read_metrics
from tests.pipeline.runs import assert_accounted, finish, records, resume, run_to_the_end

ANSWERS = [{"prompt_token_ids": [5, i], "token_ids": [7, i, 1]} for i in range(40)]
SETTINGS = (
    "domain._target_=pipelinerl.domains.demonstrations.Demonstrations",
    "+domain.domain={_target_: tests.scripted_domain.ScriptedDomain, seed: 0}",
    "objective=cross_entropy",
    "advantage=constant",
    "normalisation=tokens",
    "filters=[]",
    "batch_size=16",
    "group_size=1",
    "max_lag=1",
    "checkpoint.every=2",
)


def on_file(directory: Path, rows: list[dict]) -> list[str]:
    path = directory / "file.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return [*SETTINGS, f"+domain.path={path}"]


def trained(run_dir: Path) -> list[TrainingSequence]:
    rows = [row for row in records(run_dir, "rows") if isinstance(row, MicroBatchRow)]
    return [sequence for row in rows for rank in row.micro_batches for sequence in rank]


def test_a_run_learns_from_answers_token_for_token_and_goes_on(tmp_path):
    run_dir = tmp_path / "run"
    run_to_the_end(run_dir, *on_file(tmp_path, ANSWERS), "max_steps=6")
    assert len(assert_accounted(run_dir)["trained"]) == 6 * 16
    known = {tuple(row["prompt_token_ids"] + row["token_ids"]) for row in ANSWERS}
    sequences = trained(run_dir)
    assert len(sequences) >= 6 * 16
    for sequence in sequences:
        assert tuple(sequence.token_ids.tolist()) in known
        assert sequence.loss_mask.tolist() == [False, False, True, True, True]
        assert np.all(sequence.versions == -1) and np.all(sequence.advantages[2:] == 1)
    steps = [row for row in read_metrics(metrics_path(run_dir, "trainer")) if "cross_entropy" in row]
    assert len(steps) == 6 and not any("ess" in row for row in steps)

    status, err = finish(resume(run_dir, "max_steps=8"))
    assert status == 0, err
    assert len(assert_accounted(run_dir)["trained"]) == 8 * 16


PAIRS = [
    {"prompt_token_ids": [5, i], "chosen_token_ids": [7, i, 1], "rejected_token_ids": [8, i, 3, 1]}
    for i in range(40)
]


def test_a_pair_is_one_rollout_of_two_signs_with_the_references_scores(tmp_path):
    """Two ranks. The same tokens have the same scores, in whichever row."""
    run_dir = tmp_path / "run"
    preferences = ("credit=completion", "reference=scripted", "max_steps=3", "world.trainer_ranks=2")
    dpo = ("objective._target_=pipelinerl.objectives.dpo.Dpo", "~objective.max_importance_weight")
    settings = [s for s in on_file(tmp_path, PAIRS) if not s.startswith("objective")]
    run_to_the_end(run_dir, *settings, *dpo, "+objective.beta=0.1", *preferences)
    assert len(assert_accounted(run_dir)["trained"]) == 3 * 16
    rows = [row for row in records(run_dir, "rows") if isinstance(row, MicroBatchRow)]
    scores: dict[tuple[int, ...], tuple[float, ...]] = {}
    for sequences in (rank for row in rows for rank in row.micro_batches):
        pairs: dict[str, list[TrainingSequence]] = {}
        for sequence in sequences:
            pairs.setdefault(sequence.rollout_id, []).append(sequence)
            tokens = tuple(sequence.token_ids.tolist())
            given = tuple(sequence.reference_logprobs.tolist())
            assert scores.setdefault(tokens, given) == given and any(given)
        for chosen, rejected in pairs.values():
            assert chosen.advantages[2:].tolist() == [1.0] * 3
            assert rejected.advantages[2:].tolist() == [-1.0] * 4
    assert "none of them sampled" in describe_row(rows[0])
