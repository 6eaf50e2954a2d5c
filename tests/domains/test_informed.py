"""What the reference is told: after which tokens it scores each turn, and what cannot be told."""

import asyncio

import pytest

from pipelinerl.domains.base import Answer, Attempt, ChatClient, Domain, Problem
from pipelinerl.domains.informed import Informed
from pipelinerl.domains.mixture import Mixture
from tests.builders import completion

SYSTEM = {"role": "system", "content": "be brief"}
TEMPLATE = "{prompt} It is {told}."


class TwoTurns(Domain):
    """An attempt of two turns, and of one whose conversation is another."""

    name, train_size, heldout_size = "two", 8, 8

    def __init__(self, data: object = None):
        self._data = {"answer": "{prompt} 42"} if data is None else data

    def train_problem(self, index: int) -> Problem:
        return Problem(f"p{index}", [SYSTEM, {"role": "user", "content": "{told}?"}], data=self._data)

    def heldout_problem(self, index: int) -> Problem:
        return self.train_problem(index)

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        turns = [completion([1, 2], [3]), completion([1, 2, 3, 4], [5]), completion([8], [9])]
        return Attempt(turns, reward=1.0, success=True)


class Encoder:
    """A client whose prompt of any conversation is [6, 7, 7]."""

    def __init__(self):
        self.asked = []

    async def chat(self, messages: list[dict[str, str]]) -> Answer:
        raise AssertionError("the domain samples by itself")

    async def prompt_of(self, messages: list[dict[str, str]]) -> list[int]:
        self.asked.append(messages)
        return [6, 7, 7]


def prompts(domain: Domain, client: Encoder) -> list[list[int] | None]:
    attempt = asyncio.run(domain.rollout(client, domain.train_problem(0)))
    given = [made.reference_prompt for made in attempt.completions]
    return [None if prompt is None else prompt.tolist() for prompt in given]


def test_each_turn_is_scored_after_the_informed_prompt_and_what_followed_it():
    client = Encoder()
    domain = Informed(TwoTurns(), TEMPLATE, "answer")
    assert prompts(domain, client) == [[6, 7, 7], [6, 7, 7, 3, 4], None]
    assert client.asked == [[SYSTEM, {"role": "user", "content": "{told}? It is {prompt} 42."}]]
    assert domain.train_problem(0).messages[1]["content"] == "{told}?"  # what the model sees
    assert domain.informs_reference


def test_a_part_of_a_mixture():
    client = Encoder()
    domain = Mixture({"told": Informed(TwoTurns(), TEMPLATE, "answer"), "plain": TwoTurns()})
    assert domain.informs_reference
    assert prompts(domain, client)[0] == [6, 7, 7]


@pytest.mark.parametrize("data", ["42", {"question": "?"}])
def test_a_problem_without_the_field(data):
    with pytest.raises(ValueError, match="problem p0 has no answer in its data"):
        prompts(Informed(TwoTurns(data), TEMPLATE, "answer"), Encoder())


@pytest.mark.parametrize("template", ["{prompt}", "it is {told}"])
def test_a_template_that_leaves_something_out(template):
    with pytest.raises(ValueError, match="does not contain"):
        Informed(TwoTurns(), template, "answer")
