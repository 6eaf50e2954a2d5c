"""Pools by the latest group, chosen by weight whatever their size, uniform within."""

from collections import Counter

import pytest

from pipelinerl.samplers.difficulty_pools import DifficultyPools
from tests.samplers.domains import Labelled

WEIGHTS = {"easy": 0.2, "normal": 1.0, "hard": 0.2}


def pools(problems: int, weights: dict[str, float] = WEIGHTS) -> DifficultyPools:
    return DifficultyPools(Labelled(problems), 0, hard_up_to=0.25, normal_up_to=0.75, weights=weights)


def shares(sampler: DifficultyPools, draws: int) -> dict[int, float]:
    counts = Counter(sampler.next(version=0) for _ in range(draws))
    return {problem: count / draws for problem, count in counts.items()}


def test_a_pool_has_its_weight_however_many_problems_it_holds():
    sampler = pools(10)
    sampler.observe(0, 0.25)  # hard: the bound belongs to it
    sampler.observe(1, 0.75)  # normal, as the unseen are
    for problem in (2, 3):
        sampler.observe(problem, 0.76)  # easy
    found = shares(sampler, 40_000)
    assert found[0] == pytest.approx(0.2 / 1.4, abs=0.01)
    assert found[2] == pytest.approx(0.1 / 1.4, abs=0.01)
    assert found[3] == pytest.approx(0.1 / 1.4, abs=0.01)
    for problem in (1, 4, 5, 6, 7, 8, 9):
        assert found[problem] == pytest.approx(1 / 7 / 1.4, abs=0.01)


def test_the_latest_group_decides():
    sampler = pools(2)
    for success in (0.0, 1.0, 0.5):
        sampler.observe(0, success)
    assert shares(sampler, 10_000)[0] == pytest.approx(0.5, abs=0.02)  # both are normal


def test_an_empty_pool_takes_no_part():
    assert set(shares(pools(3), 1000)) == {0, 1, 2}
    sampler = pools(2)
    sampler.observe(0, 0.0)
    sampler.observe(1, 1.0)
    assert shares(sampler, 10_000)[0] == pytest.approx(0.5, abs=0.02)  # hard 0.2, easy 0.2, no normal
