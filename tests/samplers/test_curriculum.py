"""Easy problems first, by the domain's labels; the share of the problems grows as it says."""

import pytest

from pipelinerl.samplers.curriculum import Curriculum
from tests.letters_domain import LettersDomain
from tests.samplers.domains import Labelled


def test_draws_are_uniform_over_the_easiest_share():
    """In Labelled the last problem is the easiest."""
    runs = 4000
    for draw, easiest in ((0, 10), (200, 55), (400, 100), (900, 100)):
        drawn = []
        for seed in range(runs):
            sampler = Curriculum(Labelled(100), seed, start_share=0.1, ramp_draws=400)
            sampler.load_state_dict({"draws": draw})
            drawn.append(99 - sampler.next(version=0))
        counts = [drawn.count(rank) for rank in range(easiest)]
        assert sum(counts) == runs, f"harder than the easiest {easiest} at draw {draw}"
        mean = runs / easiest
        assert sum((count - mean) ** 2 / mean for count in counts) < easiest + 4 * (2 * easiest) ** 0.5


def test_equally_difficult_problems_stand_in_an_order_of_the_seeds():
    class Alike(Labelled):
        def difficulty(self, index: int) -> float:
            return float(index < 50)  # fifty easy ones, then fifty hard ones

    starts = []
    for seed in range(20):
        sampler = Curriculum(Alike(100), seed, start_share=0.05, ramp_draws=10**9)
        starts.append(frozenset(sampler.next(version=0) for _ in range(100)))
    assert all(len(start) == 5 and min(start) >= 50 for start in starts)
    assert len(set(starts)) == 20


def test_a_domain_without_labels_is_refused_before_anything_is_drawn():
    with pytest.raises(ValueError, match="domain letters has no difficulty labels"):
        Curriculum(LettersDomain(0), 0, start_share=0.1, ramp_draws=10)
