from contracts.records import VersionSpan
from pipelinerl.batching.sequences import training_sequences
from tests.builders import completion, rollout


def test_single_turn():
    spans = [VersionSpan(3, 0, 1), VersionSpan(4, 1, 2)]
    one = rollout(7, completions=[completion([1, 2], [3, 4], spans=spans)])
    (sequence,) = training_sequences(one, [0.5])
    assert sequence.token_ids.tolist() == [1, 2, 3, 4]
    assert sequence.loss_mask.tolist() == [False, False, True, True]
    assert sequence.versions.tolist() == [-1, -1, 3, 4]
    assert sequence.advantages.tolist() == [0, 0, 0.5, 0.5]
    assert sequence.behaviour_logprobs.tolist() == [0, 0, -0.5, -1.5]


def test_a_turn_that_extends_the_tokens_exactly_is_merged():
    turns = [completion([1], [2, 3], version=1), completion([1, 2, 3, 9], [4], version=2)]
    (sequence,) = training_sequences(rollout(0, completions=turns), [1.0, 0.5])
    assert sequence.token_ids.tolist() == [1, 2, 3, 9, 4]
    assert sequence.loss_mask.tolist() == [False, True, True, False, True]
    assert sequence.versions.tolist() == [-1, 1, 1, -1, 2]
    assert sequence.advantages.tolist() == [0, 1, 1, 0, 0.5]


def test_a_turn_whose_prompt_was_rewritten_begins_a_new_sequence():
    turns = [completion([1], [2, 3]), completion([1, 2, 8], [4])]
    first, second = training_sequences(rollout(0, completions=turns), [1.0, 0.5])
    assert first.token_ids.tolist() == [1, 2, 3]
    assert second.token_ids.tolist() == [1, 2, 8, 4]
    assert second.loss_mask.tolist() == [False, False, False, True]
