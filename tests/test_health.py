"""Alarms on series that must raise them and on series that must not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hydra.utils import instantiate

from pipelinerl.health import Alarm, Health, HealthRules
from pipelinerl.launcher.composing.compose import compose_config

STEPS = 600
RULES = instantiate(compose_config([]).health.model_dump(by_alias=True))
NOISES = range(20)


def noisy(levels, seed: int = 0, noise: float = 0.3) -> np.ndarray:
    """Log-normal noise around the levels: what gradient norms of real runs look like."""
    levels = np.asarray(levels, dtype=float)
    return levels * np.exp(noise * np.random.default_rng(seed).standard_normal(len(levels)))


def alarms(rules: HealthRules = RULES, **series) -> list[tuple[int, Alarm]]:
    """(step, alarm) of everything raised over the series, metric by metric name."""
    health = Health(rules)
    steps = zip(*series.values(), strict=True)
    return [
        (i, a) for i, step in enumerate(steps) for a in health.observe(dict(zip(series, step, strict=True)))
    ]


def raised(**series) -> list[Alarm]:
    return [alarm for _, alarm in alarms(**series)]


def creeping(factor: float, steps: int = STEPS) -> np.ndarray:
    return np.geomspace(1, factor, steps)


def fallen_then_rising(bottom: float, end: float) -> np.ndarray:
    return np.concatenate([np.geomspace(1, bottom, STEPS // 2), np.geomspace(bottom, end, STEPS // 2)])


FLAT = np.ones(STEPS)


@pytest.mark.parametrize("seed", NOISES)
def test_a_noisy_run_without_a_trend_is_well(seed):
    assert not raised(
        grad_norm=noisy(0.1 * FLAT, seed),
        clip_fraction=noisy(0.02 * FLAT, seed + 100),
        entropy=noisy(0.5 * FLAT, seed + 200, noise=0.1),
        ess=np.clip(noisy(0.6 * FLAT, seed + 300), 0, 1),
    )


def test_log_probabilities_that_differ_are_told_at_the_second_step_in_a_row():
    assert raised(logprob_gap_at_lag_0=np.full(9, 0.5)) == [Alarm.OTHER_LOGPROBS]
    assert not raised(logprob_gap_at_lag_0=np.where(np.arange(9) % 2, 0.5, 0.02))
    assert not raised(logprob_gap_at_lag_0=np.full(9, 0.03))


@pytest.mark.parametrize("seed", NOISES)
def test_a_gradient_norm_that_creeps_up_is_seen_though_no_step_stands_out(seed):
    assert raised(grad_norm=noisy(0.1 * creeping(3), seed)) == [Alarm.GRAD_NORM_RISING]


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(noisy(creeping(0.2)), id="falls"),
        pytest.param(noisy(creeping(1.6)), id="rises too little"),
        pytest.param(np.where(np.arange(STEPS) == 300, 1e4, noisy(FLAT)), id="one spike"),
        pytest.param(np.where(np.arange(STEPS) % 50 < 5, 1e3, noisy(FLAT)), id="spikes again and again"),
        pytest.param(noisy(0.001 * creeping(5)), id="rises below the floor"),
        pytest.param(np.zeros(STEPS), id="nothing but zeros"),
    ],
)
def test_a_gradient_norm_that_does_not_creep_up_raises_nothing(series):
    assert not raised(grad_norm=series)


def test_a_clip_fraction_rises_from_nothing_once_it_is_above_the_floor():
    assert not raised(clip_fraction=np.linspace(0, 0.009, STEPS))
    assert raised(clip_fraction=np.linspace(0, 0.1, STEPS)) == [Alarm.CLIP_FRACTION_RISING]


@pytest.mark.parametrize(
    ("last", "expected"),
    [([1, 1, 3, 3, 5, 5], True), ([1, 1, 5, 5, 3, 3], False), ([5, 5, 3, 3, 1, 1], False), ([3] * 6, False)],
)
def test_a_level_that_has_doubled_must_also_rise_in_all_thirds_of_its_window(last, expected):
    found = alarms(replace(RULES, window=6), grad_norm=[1.0] * 12 + last)
    assert found == ([(17, Alarm.GRAD_NORM_RISING)] if expected else [])


@pytest.mark.parametrize("seed", NOISES)
def test_entropy_that_falls_and_rises_again(seed):
    series = noisy(fallen_then_rising(0.3, 0.9), seed, noise=0.1)
    [(step, alarm)] = alarms(entropy=series)
    assert alarm == Alarm.ENTROPY_RISING_AGAIN and step > STEPS // 2


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(creeping(0.05), id="only falls"),
        pytest.param(creeping(3), id="only rises"),
        pytest.param(fallen_then_rising(0.8, 2), id="had hardly fallen"),
        pytest.param(fallen_then_rising(0.3, 0.4), id="rises too little"),
        pytest.param(np.maximum(fallen_then_rising(1e-4, 8e-3), 1e-4), id="rises below the floor"),
        pytest.param(np.concatenate([creeping(0.1, 300), 0.1 * np.ones(300)]), id="falls and stays"),
    ],
)
def test_entropy_that_does_not_rise_again_raises_nothing(series):
    assert not raised(entropy=noisy(series, noise=0.05))


def test_a_collapsed_ess():
    collapse = np.where(np.arange(STEPS) < 300, 0.9, 0.1)
    assert alarms(ess=collapse) == [(300 + RULES.window // 2, Alarm.ESS_COLLAPSED)]
    assert not raised(ess=np.where(np.arange(STEPS) % 10 < 4, 0.05, 0.9))  # low, but not for most steps


def test_an_alarm_is_raised_again_only_after_its_condition_had_ended():
    low, between, high = 0.1, 0.33, 0.9  # 0.33 is above the threshold, by less than the margin
    hovering = np.repeat([high, low, between, low, between], 60)
    assert raised(ess=hovering) == [Alarm.ESS_COLLAPSED]
    recovered = np.repeat([high, low, high, low], 60)
    assert raised(ess=recovered) == [Alarm.ESS_COLLAPSED] * 2


def test_what_is_missing_or_not_finite_changes_nothing():
    series = noisy(creeping(4), seed=1)
    nothing = [None, math.nan, math.inf, -math.inf]
    with_holes = [v for i, value in enumerate(series) for v in (value, nothing[i % 4])]
    holes = [(2 * step, alarm) for step, alarm in alarms(grad_norm=series)]
    assert alarms(grad_norm=with_holes) == holes and holes
    assert not alarms(grad_norm=nothing * 25)


@pytest.mark.parametrize("beginning", [0, 1, 100, 250])
def test_a_run_resumed_anywhere_needs_windows_of_its_own(beginning):
    """One of them for a collapse, two that share no step for growth."""
    steep = 1.05 ** np.arange(400)
    found = alarms(grad_norm=steep[beginning:], ess=np.full(400 - beginning, 0.1))
    assert found == [
        (RULES.window - 1, Alarm.ESS_COLLAPSED),
        (2 * RULES.window - 1, Alarm.GRAD_NORM_RISING),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 2}, "window must be at least 3, not 2"),
        ({"entropy_growth": math.nan}, "entropy_growth must be greater than 1, not nan"),
        ({"clip_fraction_floor": -0.1}, "clip_fraction_floor must be 0 or more, not -0.1"),
        ({"entropy_fall": 1.0}, "entropy_fall must be between 0 and 1, not 1.0"),
        ({"ess_floor": 0}, "ess_floor must be between 0 and 1, not 0"),
    ],
)
def test_a_rule_without_meaning_is_refused_in_one_line(options, message):
    with pytest.raises(ValueError) as refusal:
        replace(RULES, **options)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("metric", "values", "steps"),
    [
        ("skipped", [0.0, 1.0, 1.0, 0.0, 1.0], [1, 4]),
        ("without_gradient", [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0], [5]),
        ("learning_rate", [1e-3, 1e-4, 0.0, 0.0], [2]),
    ],
)
def test_steps_that_change_nothing(metric, values, steps):
    assert [step for step, _ in alarms(**{metric: values})] == steps
