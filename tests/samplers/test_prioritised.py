"""p_i ∝ max(1 − s_i, floor): frequencies, and what is tracked."""

from collections import Counter

import pytest

from pipelinerl.samplers.prioritised import Prioritised
from tests.samplers.domains import Labelled


def frequencies(sampler: Prioritised, draws: int) -> dict[int, float]:
    counts = Counter(sampler.next(version=0) for _ in range(draws))
    return {problem: count / draws for problem, count in counts.items()}


def test_problems_come_in_proportion_to_what_is_not_solved():
    sampler = Prioritised(Labelled(4), 0, rate=1.0, floor=0.1)
    for problem, success in ((0, 1.0), (1, 0.75), (2, 0.4)):
        sampler.observe(problem, success)
    expected = {0: 0.1, 1: 0.25, 2: 0.6, 3: 1.0}  # floored, twice seen, never seen
    found = frequencies(sampler, 40_000)
    for problem, weight in expected.items():
        assert found[problem] == pytest.approx(weight / 1.95, abs=0.01)


def test_the_tracked_success_moves_by_rate_from_the_first_group_on():
    sampler = Prioritised(Labelled(2), 0, rate=0.25, floor=0.1)
    for success in (0.5, 1.0, 1.0):
        sampler.observe(0, success)
    assert sampler.state_dict()["success"] == {"0": pytest.approx(0.71875)}  # 0.5, 0.625, 0.71875
    assert frequencies(sampler, 40_000)[0] == pytest.approx(0.28125 / 1.28125, abs=0.01)
