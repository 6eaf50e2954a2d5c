"""Several turns through the real server and trainer: one sequence, of the tokens that were sampled."""

import numpy as np

from contracts.conformance.tiny_model import make_tiny_model
from contracts.records import Rollout
from pipelinerl.sequences import training_sequences
from tests.pipeline.runs import assert_accounted, finish, launch, records


def test_turns_are_one_sequence_of_sampled_tokens(tmp_path):
    make_tiny_model(tmp_path / "model")
    settings = [
        f"model.path={tmp_path}/model",
        "~domain",
        "+domain._target_=tests.talking_domain.TalkingDomain",
        "batch_size=16",
        "group_size=4",
        "max_steps=2",
        "sampling.max_tokens=6",
        "eval.problems=8",
        "filters=[]",
        "give_up_after=50",
    ]
    status, err = finish(launch(tmp_path / "run", *settings))
    assert status == 0, err
    assert_accounted(tmp_path / "run")
    rollouts = [r for r in records(tmp_path / "run", "rollouts") if isinstance(r, Rollout)]
    assert len(rollouts) >= 32 and {r.status for r in rollouts} <= {"ok", "truncated"}
    for rollout in rollouts:
        assert len(rollout.completions) == 3
        (sequence,) = training_sequences(rollout, [1.0, 1.0, 1.0])
        sampled = np.concatenate([c.token_ids for c in rollout.completions])
        assert np.array_equal(sequence.token_ids[sequence.loss_mask], sampled)
