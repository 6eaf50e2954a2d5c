import numpy as np

from contracts.records import VersionSpan, unsampled
from contracts.token_fields import TokenField
from pipelinerl.batching.sequences import chains_of, training_sequences, with_advantages
from pipelinerl.batching.staleness import StalePolicy
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


def alternating():
    """Returns the turns of two conversations that alternate, and of an answer beside the second turn."""
    return [
        completion([1], [2, 3], version=1),
        completion([7], [8], version=1),
        completion([1, 2, 3, 9], [4], version=2),
        completion([7, 8, 6], [5, 5], version=2),
        completion([1, 2, 3, 9], [6], version=3),
        completion([1, 2, 3, 9, 4, 9], [3], version=4),
    ]


def test_conversations_that_alternate_are_a_sequence_each_with_every_token_once():
    turns = alternating()
    assert chains_of(turns) == [[0, 2, 5], [1, 3], [4]]
    first, second, beside = training_sequences(rollout(0, completions=turns), np.arange(1.0, 7.0))
    assert first.token_ids.tolist() == [1, 2, 3, 9, 4, 9, 3]
    assert first.advantages.tolist() == [0, 1, 1, 0, 3, 0, 6]
    assert second.versions.tolist() == [-1, 1, -1, 2, 2]
    assert beside.loss_mask.tolist() == [False] * 4 + [True]


def test_other_advantages_lie_on_the_tokens_of_their_turns():
    turns = alternating()
    made = training_sequences(rollout(0, completions=turns), [0.0] * 6)
    lengths = [len(turn.token_ids) for turn in turns]
    replaced = with_advantages(made, np.arange(1.0, 7.0), lengths, chains_of(turns))
    expected = training_sequences(rollout(0, completions=turns), np.arange(1.0, 7.0))
    assert [each.advantages.tolist() for each in replaced] == [each.advantages.tolist() for each in expected]


def test_the_longest_of_the_conversations_that_a_prompt_extends_goes_on():
    turns = [completion([1], [2]), completion([1], [2, 3]), completion([1, 2, 3, 4], [5])]
    assert chains_of(turns) == [[0], [1, 2]]


MARK = {"mark": TokenField(dtype="uint8", fill=9)}


def marked(*values: int) -> dict[str, np.ndarray]:
    return {"mark": np.array(values, dtype=np.uint8)}


def test_token_fields_lie_where_their_tokens_were_sampled():
    turns = [
        completion([1], [2, 3], version=1, token_fields=marked(20, 30)),
        completion([1, 2, 3, 8], [4], version=2, token_fields=marked(40)),
        completion([5, 6], [7], token_fields=marked(70)),
    ]
    merged, other = training_sequences(rollout(0, completions=turns), [1.0] * 3, token_fields=MARK)
    assert merged.token_fields["mark"].tolist() == [9, 20, 30, 9, 40]
    assert other.token_fields["mark"].tolist() == [9, 9, 70]
    assert merged.token_fields["mark"].dtype == np.uint8


def test_a_completion_without_a_token_field_has_its_fill():
    (sequence,) = training_sequences(rollout(0), [1.0], token_fields=MARK)
    assert sequence.token_fields["mark"].tolist() == [9] * 5


def test_tokens_that_leave_the_loss_keep_their_fields():
    one = completion([1], [2, 3, 4], token_fields=marked(20, 30, 40), segments=[2])
    (last,) = training_sequences(rollout(0, completions=[one]), [1.0], last_segments=True, token_fields=MARK)
    assert last.loss_mask.tolist() == [False, False, False, True]
    (masked,) = StalePolicy("mask", max_lag=1).mask([last], step=5)
    assert not masked.loss_mask.any()
    assert masked.token_fields["mark"].tolist() == [9, 20, 30, 40]


def test_an_answer_that_nobody_sampled_has_no_version_and_no_logprobs():
    (sequence,) = training_sequences(rollout(0, completions=[unsampled([1, 2], [3, 4])]), [1.0])
    assert sequence.loss_mask.tolist() == [False, False, True, True]
    assert sequence.versions.tolist() == [-1, -1, -1, -1]
    assert sequence.behaviour_logprobs.tolist() == [0, 0, 0, 0]
