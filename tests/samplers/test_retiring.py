"""A solved problem comes no more, while there are others."""

from functools import partial

from pipelinerl.samplers.curriculum import Curriculum
from pipelinerl.samplers.retiring import Retiring
from pipelinerl.samplers.shuffled_epochs import ShuffledEpochs
from tests.samplers.domains import Labelled


def test_a_problem_that_a_group_has_solved_comes_no_more():
    sampler = Retiring(Labelled(10), 0, ShuffledEpochs, success=0.9)
    sampler.observe(3, 0.9)
    sampler.observe(4, 0.89)
    drawn = [sampler.next(version=0) for _ in range(45)]
    assert set(drawn) == set(range(10)) - {3}
    sampler.observe(3, 0.0)  # of a group that was under way
    assert 3 not in {sampler.next(version=0) for _ in range(18)}


def test_once_all_are_solved_all_come_again():
    sampler = Retiring(Labelled(4), 0, ShuffledEpochs, success=1.0)
    for problem in range(4):
        sampler.observe(problem, 1.0)
    assert sorted(sampler.next(version=0) for _ in range(4)) == [0, 1, 2, 3]


def test_solved_problems_come_where_the_sampler_inside_draws_no_others():
    curriculum = partial(Curriculum, start_share=0.1, ramp_draws=10**9)
    sampler = Retiring(Labelled(10), 0, curriculum, success=0.9)
    (easiest,) = {sampler.next(version=0) for _ in range(5)}
    sampler.observe(easiest, 1.0)
    assert sampler.next(version=0) == easiest


def test_the_sampler_inside_hears_of_every_group():
    heard = []

    class Listening(ShuffledEpochs):
        def observe(self, problem, success):
            heard.append((problem, success))

    sampler = Retiring(Labelled(4), 0, Listening, success=0.9)
    sampler.observe(1, 1.0)
    sampler.observe(2, 0.5)
    assert heard == [(1, 1.0), (2, 0.5)]
