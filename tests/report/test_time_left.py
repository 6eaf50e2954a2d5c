"""The time that is left: at one pace, with steps that become slower or quicker, and with noise."""

import random
from collections.abc import Callable

import pytest

from pipelinerl.report.time_left import STEPS, time_left, trend

RUN = 120  # steps


def ends_of(seconds: Callable[[int], float]) -> list[tuple[int, float]]:
    """Returns every step of a run with the second at which it ends."""
    ends = [(0, 0.0)]
    for step in range(1, RUN + 1):
        ends.append((step, ends[-1][1] + seconds(step)))
    return ends


def judged_at(ends: list[tuple[int, float]], step: int) -> tuple[float, float]:
    """Returns what is said to be left after a step, and what is."""
    last = ends[max(0, step - STEPS) : step + 1]
    return time_left(last, RUN, now=ends[step][1]), ends[-1][1] - ends[step][1]


@pytest.mark.parametrize("seconds", [lambda step: 1 + step / 30, lambda step: 5 - step / 40])
def test_a_trend_goes_on(seconds):
    """The mean of the last steps alone is wrong by a fifth or more."""
    ends = ends_of(seconds)
    said, true = judged_at(ends, 80)
    assert said == pytest.approx(true, rel=0.08)
    last_mean = (ends[80][1] - ends[80 - STEPS][1]) / STEPS
    assert abs((RUN - 80) * last_mean / true - 1) > 0.2


def test_steps_that_become_quicker_take_half_the_present_time_at_least():
    ends = [(step, sum(10.0 - k for k in range(step))) for step in range(10)]  # the last one took 2 s
    assert time_left(ends, 1009, now=ends[-1][1]) == pytest.approx(1000 * 1.0, rel=0.01)


def test_noise_is_no_trend():
    draw = random.Random(0)
    for _ in range(20):
        said, true = judged_at(ends_of(lambda step: draw.uniform(1.0, 3.0)), 60)
        assert said == pytest.approx(true, rel=0.35)
    assert trend([1.0, 3.0] * 8) == 0.0


def test_it_counts_down_within_a_step_and_stands_still_when_the_step_is_late():
    ends = [(0, 100.0), (1, 110.0)]
    assert [time_left(ends, 4, now) for now in (110.0, 114.0, 120.0, 200.0)] == [30.0, 26.0, 20.0, 20.0]


def test_before_two_steps_have_ended_nothing_is_known_and_after_the_last_nothing_is_left():
    assert time_left([], 9, 0.0) is None
    assert time_left([(3, 1.0)], 9, 1.0) is None
    assert time_left([(8, 1.0), (9, 2.0)], 9, 5.0) == 0.0
