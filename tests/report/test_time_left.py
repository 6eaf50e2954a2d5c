"""The time that is left, which is a guess: what it never says."""

from pipelinerl.report.time_left import time_left


def test_it_counts_down_within_a_step_and_stands_still_when_the_step_is_late():
    ends = [(0, 100.0), (1, 110.0)]
    assert [time_left(ends, 4, now) for now in (110.0, 114.0, 120.0, 200.0)] == [30.0, 26.0, 20.0, 20.0]


def test_before_two_steps_have_ended_nothing_is_known_and_after_the_last_nothing_is_left():
    assert time_left([], 9, 0.0) is None
    assert time_left([(3, 1.0)], 9, 1.0) is None
    assert time_left([(8, 1.0), (9, 2.0)], 9, 5.0) == 0.0
