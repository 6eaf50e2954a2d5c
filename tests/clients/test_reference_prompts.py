"""The scores after other prompts are laid at the tokens that they are of."""

import numpy as np

from contracts.records import Completion
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients.reference_prompts import to_score, with_scores
from tests.builders import completion, rollout


def told(prompt: list[int], sampled: list[int], reference: list[int]) -> Completion:
    return completion(prompt, sampled, reference_prompt=np.array(reference, dtype=np.int32))


def scored(*completions: Completion) -> tuple[list[list[int]], list[float]]:
    """Returns what is asked, and the reference's log-probabilities where a token's score is its place."""
    (sequence,) = training_sequences(rollout(0, completions=list(completions)), [1.0] * len(completions))
    asked = list(to_score(sequence))
    answers = [np.arange(1, len(ids), dtype=np.float32) + 100 * i for i, ids in enumerate(asked)]
    after = with_scores(sequence, iter(answers))
    assert after.reference_prompts == []
    return asked, after.reference_logprobs.tolist()


def test_without_another_prompt_the_sequence_is_scored():
    asked, logprobs = scored(completion([1, 2], [3, 4]))
    assert asked == [[1, 2, 3, 4]]
    assert logprobs == [0, 1, 2, 3]


def test_a_completion_is_scored_after_the_prompt_for_the_reference():
    asked, logprobs = scored(told([1, 2], [3, 4, 5], [7, 8, 9, 9]))
    assert asked == [[7, 8, 9, 9, 3, 4, 5]]  # nothing in the loss has another prompt
    assert logprobs == [0, 0, 4, 5, 6]  # the places of 3, 4 and 5 after the other prompt


def test_each_turn_has_its_own_and_one_without_keeps_the_sequences():
    first = told([1, 2], [3], [9, 1, 2])
    second = completion([1, 2, 3, 4], [5])
    third = told([1, 2, 3, 4, 5, 6], [7, 8], [9, 1, 2, 3, 4, 5, 6])
    asked, logprobs = scored(first, second, third)
    assert asked == [[1, 2, 3, 4, 5, 6, 7, 8], [9, 1, 2, 3], [9, 1, 2, 3, 4, 5, 6, 7, 8]]
    assert logprobs == [0, 1, 103, 3, 4, 5, 207, 208]
