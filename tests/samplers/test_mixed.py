"""Parts by weight, or by weight and success; a sampler of each part sees that part alone."""

from collections import Counter
from functools import partial

import pytest

from pipelinerl.domains.base import Domain
from pipelinerl.domains.mixture import Mixture
from pipelinerl.samplers.base import Sampler
from pipelinerl.samplers.mixed import Mixed
from pipelinerl.samplers.shuffled_epochs import ShuffledEpochs
from tests.samplers.domains import Labelled

PARTS = Mixture({"a": Labelled(10), "b": Labelled(200), "c": Labelled(30)})


def mixed(weights: dict[str, float], adapt: bool = False, sampler=ShuffledEpochs) -> Mixed:
    return Mixed(PARTS, 0, sampler=sampler, weights=weights, adapt=adapt, rate=0.5, floor=0.1)


def shares(sampler: Mixed, draws: int = 20_000) -> dict[str, float]:
    counts = Counter(PARTS.train_problem(sampler.next(version=0)).domain for _ in range(draws))
    return {part: counts[part] / draws for part in PARTS.parts}


def test_parts_come_by_weight_whatever_their_size():
    assert shares(mixed({"a": 5, "c": 0.5})) == pytest.approx(
        {"a": 5 / 6.5, "b": 1 / 6.5, "c": 0.5 / 6.5}, abs=0.01
    )
    assert shares(mixed({"b": 0}))["b"] == 0


def test_success_changes_nothing_unless_it_adapts():
    sampler = mixed({})
    sampler.observe(0, 1.0)
    assert shares(sampler) == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, abs=0.01)


def test_adapting_takes_the_parts_that_are_not_solved():
    sampler = mixed({"a": 2}, adapt=True)
    for success in (1.0, 1.0, 1.0):
        sampler.observe(9, success)  # of a: solved
    for success in (0.0, 0.5, 0.75):
        sampler.observe(10, success)  # of b: 0, 0.25, 0.5
    # a: 2 · the floor of 0.1; b: 1 − 0.5; c: never seen
    assert shares(sampler) == pytest.approx({"a": 0.2 / 1.7, "b": 0.5 / 1.7, "c": 1 / 1.7}, abs=0.01)


class Watched(Sampler):
    """Draws its last problem; remembers what it was observed."""

    def __init__(self, domain: Domain, seed: int, made: list):
        super().__init__(domain, seed)
        self.observed: list[tuple[int, float]] = []
        self.domain, self.seed = domain, seed
        made.append(self)

    def next(self, version: int) -> int:
        return self._domain.train_size - 1

    def observe(self, problem: int, success: float) -> None:
        self.observed.append((problem, success))

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


def test_a_parts_sampler_sees_its_own_problems_and_no_other():
    made: list[Watched] = []
    sampler = mixed({}, sampler=partial(Watched, made=made))
    assert [s.domain.train_size for s in made] == [10, 200, 30]
    assert len({s.seed for s in made}) == 3
    assert {sampler.next(version=0) for _ in range(100)} == {9, 209, 239}
    for problem in (0, 9, 10, 209, 210, 239):
        sampler.observe(problem, problem / 239)
        own = PARTS.train_problem(problem)
        index = next(s.observed[-1][0] for s in made if s.observed and s.observed[-1][1] == problem / 239)
        assert own.problem_id == f"{own.domain}/train/{index}"
    assert [[index for index, _ in s.observed] for s in made] == [[0, 9], [0, 199], [0, 29]]
    b = made[1].domain
    assert b.train_problem(3) == PARTS.train_problem(13) and b.difficulty(3) == PARTS.difficulty(13)
    assert b.parts == {"b": range(200)}


def test_a_domain_that_is_no_mixture_is_one_part():
    sampler = Mixed(Labelled(5), 0, ShuffledEpochs, {"labelled": 2}, adapt=True, rate=0.5, floor=0.1)
    assert sorted(sampler.next(version=0) for _ in range(5)) == [0, 1, 2, 3, 4]
