"""Several domains as one: whose problem it is stays known, from the draw to the judge."""

import asyncio
from dataclasses import replace

import pytest

from pipelinerl.domains.base import Attempt
from pipelinerl.domains.mixture import Mixture
from tests.extensions.reasoning_gym.test_reasoning_gym import Says
from tests.samplers.domains import Labelled


class Remembers(Labelled):
    """The last problem that it was given to attempt."""

    async def rollout(self, client, problem) -> Attempt:
        self.given = problem
        return await super().rollout(client, problem)


def rolled_out(domain: Mixture, problem) -> None:
    asyncio.run(domain.rollout(Says(domain, ""), problem))


def test_training_problems_stand_one_part_after_another():
    parts = {"a": Labelled(3, "x"), "b": Labelled(2, "x")}
    mixture = Mixture(parts)
    assert mixture.train_size == 5
    assert mixture.parts == {"a": range(3), "b": range(3, 5)}
    problems = [mixture.train_problem(index) for index in range(5)]
    assert [p.domain for p in problems] == ["a", "a", "a", "b", "b"]
    assert [p.messages for p in problems[3:]] == [parts["b"].train_problem(i).messages for i in range(2)]
    assert len({p.problem_id for p in problems}) == 5  # both parts call theirs train/0, train/1
    assert [mixture.difficulty(index) for index in range(5)] == [3, 2, 1, 2, 1]


def test_heldout_problems_take_turns_until_a_part_has_no_more():
    mixture = Mixture({"a": Labelled(1, heldout_size=1), "b": Labelled(1, heldout_size=3)})
    problems = [mixture.heldout_problem(index) for index in range(mixture.heldout_size)]
    assert [p.problem_id for p in problems] == ["a/heldout/0", "b/heldout/0", "b/heldout/1", "b/heldout/2"]


def test_an_attempt_is_its_parts_own():
    parts = {"a": Remembers(3), "b": Remembers(3)}
    mixture = Mixture(parts)
    rolled_out(mixture, mixture.train_problem(4))
    assert parts["b"].given == parts["b"].train_problem(1) and not hasattr(parts["a"], "given")
    rolled_out(mixture, mixture.heldout_problem(2))
    assert parts["a"].given == parts["a"].heldout_problem(1)


def test_what_was_said_to_a_problem_on_its_way_reaches_the_part():
    part = Remembers(3)
    mixture = Mixture({"a": part})
    other = [{"role": "user", "content": "be brief"}]
    rolled_out(mixture, replace(mixture.train_problem(0), messages=other))
    assert part.given.messages == other


class Thoughtless(Labelled):
    def train_problem(self, index):
        return replace(super().train_problem(index), template={"enable_thinking": False})


def test_a_problem_keeps_its_options_of_the_chat_template():
    mixture = Mixture({"a": Labelled(1), "b": Thoughtless(1)})
    assert [mixture.train_problem(index).template for index in range(2)] == [None, {"enable_thinking": False}]


def test_a_mixture_within_a_mixture():
    inner = {"x": Remembers(2), "y": Remembers(2)}
    outer = Mixture({"a": Labelled(3), "m": Mixture(inner)})
    problem = outer.train_problem(5)
    assert (problem.domain, problem.problem_id) == ("m", "m/y/train/0")
    rolled_out(outer, problem)
    assert inner["y"].given == inner["y"].train_problem(0)


def test_a_mixture_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one domain"):
        Mixture({})
