"""Reward terms by hand, their properties on random groups, and the detector of repetition."""

import msgspec
import numpy as np
import pytest

from contracts.records import Rollout
from pipelinerl.clients.partial_completions import repeats
from pipelinerl.rewards.overlong import Overlong
from pipelinerl.rewards.relative_length import RelativeLength
from pipelinerl.rewards.repetition import Repetition
from pipelinerl.rewards.target_length import TargetLength
from pipelinerl.rewards.wrong import Wrong
from tests.builders import completion, rollout

RANDOM_SEQUENCES = 2000


def attempt(length: int, success: bool = True, turns: int = 1, **metrics: float) -> Rollout:
    """Of `length` sampled tokens, spread over the turns."""
    parts = np.array_split(np.full(length, 7), turns)
    return rollout(
        0,
        completions=[completion([1, 2], list(part)) for part in parts],
        metrics={"success": float(success), **metrics},
    )


# --- wrong ------------------------------------------------------------------------------------


def test_a_wrong_answer_loses_the_penalty():
    assert Wrong(1.0)([attempt(3), attempt(3, success=False)], 0).tolist() == [0.0, -1.0]
    with pytest.raises(ValueError, match="penalty must be a positive number"):
        Wrong(0.0)


# --- target length ----------------------------------------------------------------------------


def test_target_length_costs_alpha_per_token_in_either_direction():
    group = [attempt(n, target_length=100.0) for n in (100, 90, 130)]
    np.testing.assert_allclose(TargetLength(alpha=3e-4)(group, 0), [0, -3e-3, -9e-3])


def test_a_length_is_that_of_all_turns_and_success_does_not_matter():
    group = [attempt(30, turns=3, target_length=24.0), attempt(30, success=False, target_length=24.0)]
    np.testing.assert_allclose(TargetLength(alpha=0.5)(group, 0), [-3, -3])


def test_a_domain_that_states_no_target_length_is_named_in_one_line():
    with pytest.raises(ValueError, match=r"^domain d states no target_length for problem p; .*$"):
        TargetLength(alpha=1.0)([attempt(3)], 0)


# --- relative length --------------------------------------------------------------------------


def test_relative_length_by_hand():
    group = [
        attempt(10),
        attempt(20),
        attempt(30),
        attempt(10, False),
        attempt(20, False),
        attempt(25, False),
    ]
    np.testing.assert_allclose(RelativeLength(2.0, 0)(group, 0), [1, 0, -1, 0, 0, -0.5])


@pytest.mark.parametrize("group", [[], [attempt(9)], [attempt(9), attempt(9, False)]], ids=len)
def test_relative_length_is_nothing_where_all_are_as_long(group):
    np.testing.assert_array_equal(RelativeLength(1.0, 0)(group, 0), np.zeros(len(group)))


def test_relative_length_begins_after_the_warmup():
    term, group = RelativeLength(1.0, warmup_versions=3), [attempt(1), attempt(2)]
    assert [term(group, version).any() for version in range(5)] == [False, False, False, True, True]


# --- overlong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0), (60, 0), (61, -0.025), (80, -0.5), (99, -0.975), (100, -1), (101, -1), (500, -1)],
)
def test_overlong_falls_from_zero_to_minus_one_over_the_buffer(length, expected):
    np.testing.assert_allclose(Overlong(max_tokens=100, buffer=40)([attempt(length)], 0), [expected])


def test_overlong_takes_a_truncated_rollout_for_one_at_the_limit():
    short = msgspec.structs.replace(attempt(5), status="truncated")
    np.testing.assert_allclose(Overlong(max_tokens=100, buffer=40)([short, attempt(5)], 0), [-1, 0])


def test_overlong_with_a_buffer_of_all_tokens():
    np.testing.assert_allclose(Overlong(10, 10)([attempt(n) for n in (0, 5, 10)], 0), [0, -0.5, -1])


# --- repetition -------------------------------------------------------------------------------


def test_only_a_rollout_that_was_stopped_for_repeating_pays_the_penalty():
    group = [attempt(3, repetition=1.0), attempt(3, repetition=0.0), attempt(3)]
    np.testing.assert_array_equal(Repetition(penalty=0.25)(group, 0), [-0.25, 0, 0])


def test_repeats_is_what_comparing_blocks_says():
    random = np.random.default_rng(0)
    answers = []
    for _ in range(RANDOM_SEQUENCES):
        window, times = (int(n) for n in random.integers([1, 2], [5, 4]))
        tokens = random.integers(0, 2, size=random.integers(1, 14)).astype(np.int32)
        blocks = [list(tokens[-p:]) * times for p in range(1, window + 1)]
        expected = any(list(tokens[-len(block) :]) == block for block in blocks)
        assert repeats(tokens, window, times) is expected, (tokens, window, times)
        answers.append(expected)
    assert 0.2 < np.mean(answers) < 0.8
    assert repeats(np.array([], dtype=np.int32), 3, 2) is False


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TargetLength(alpha=0), "alpha must be a positive number, not 0"),
        (lambda: TargetLength(alpha=float("nan")), "alpha must be a positive number, not nan"),
        (lambda: RelativeLength(-1.0, 0), "weight must be a positive number, not -1.0"),
        (lambda: RelativeLength(float("inf"), 0), "weight must be a positive number, not inf"),
        (lambda: RelativeLength(1.0, -1), "warmup_versions must not be negative, but is -1"),
        (lambda: Overlong(100, 0), "buffer must be from 1 to max_tokens=100, not 0"),
        (lambda: Overlong(100, 101), "buffer must be from 1 to max_tokens=100, not 101"),
        (lambda: Overlong(-5, -5), "buffer must be from 1 to max_tokens=-5, not -5"),
        (lambda: Repetition(-0.5), "penalty must be a positive number, not -0.5"),
        (lambda: repeats(np.zeros(9), 0, 2), "window must be at least 1 and times at least 2, not 0 and 2"),
        (lambda: repeats(np.zeros(9), 3, 1), "window must be at least 1 and times at least 2, not 3 and 1"),
    ],
)
def test_an_option_without_meaning_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError) as refusal:
        make()
    assert str(refusal.value) == message
