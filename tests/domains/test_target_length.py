"""Target lengths around a tiny domain: what is drawn, what is recorded, what passes through."""

import asyncio
from collections import Counter

import pytest

from pipelinerl.domains.base import Answer, Attempt, ChatClient, Domain, Problem
from pipelinerl.domains.target_length import TargetLength
from tests.builders import completion

THINK = "{prompt}\n\nThink for {length} tokens before responding."
LENGTHS = [2, 4, 8]


class Echo(Domain):
    """Two chat turns; asks for `\\boxed{}`, as a template must not trip over."""

    name, train_size, heldout_size = "echo", 300, 40

    def __init__(self, system: bool = True, user: bool = True):
        self._system, self._user = system, user

    @property
    def parts(self) -> dict[str, range]:
        return {"even": range(150), "odd": range(150, 300)}

    def difficulty(self, index: int) -> float:
        return index / 10

    def train_problem(self, index: int) -> Problem:
        return self._problem(f"train-{index}")

    def heldout_problem(self, index: int) -> Problem:
        return self._problem(f"heldout-{index}")

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answers = [await client.chat(problem.messages) for _ in range(2)]
        return Attempt(
            [a.completion for a in answers], reward=0.5, success=True, metrics={"judged": float(problem.data)}
        )

    def _problem(self, name: str) -> Problem:
        system = [{"role": "system", "content": "be brief"}] * self._system
        user = [{"role": "user", "content": f"{name}: \\boxed{{length}}"}] * self._user
        return Problem(name, [*system, *user], data=7, domain="part")


class Samples:
    """A client that samples three tokens, whatever it is drawn."""

    def __init__(self):
        self.sent: list[list[dict[str, str]]] = []

    async def chat(self, messages: list[dict[str, str]]) -> Answer:
        self.sent.append(messages)
        return Answer("...", completion([1], [3, 4, 5]))


def wrapped(seed: int = 0, template: str = THINK, **options) -> TargetLength:
    return TargetLength(Echo(**options), LENGTHS, template, seed)


def train_lengths(domain: TargetLength) -> list[int]:
    return [domain.target_length(domain.train_problem(i)) for i in range(domain.train_size)]


def test_the_length_is_stated_in_the_last_user_message_and_nowhere_else():
    domain = wrapped()
    problem = domain.train_problem(5)
    stated = (
        f"train-5: \\boxed{{length}}\n\nThink for {domain.target_length(problem)} tokens before responding."
    )
    assert problem.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": stated},
    ]
    assert (problem.problem_id, problem.data, problem.domain) == ("train-5", 7, "part")


def test_the_inner_problem_is_left_as_it_was():
    inner = Echo()
    kept = inner.train_problem(0)
    inner.train_problem = lambda index: kept
    TargetLength(inner, LENGTHS, THINK).train_problem(0)
    assert kept == Echo().train_problem(0)


def test_a_template_may_put_the_length_first_and_hold_braces_of_its_own():
    problem = wrapped(template="{length} {prompt} in {}").heldout_problem(0)
    length = wrapped().target_length(problem)
    assert problem.messages[-1]["content"] == f"{length} heldout-0: \\boxed{{length}} in {{}}"


def test_a_length_follows_from_seed_and_problem_alone():
    assert train_lengths(wrapped(seed=3)) == train_lengths(wrapped(seed=3))
    assert train_lengths(wrapped(seed=3)) != train_lengths(wrapped(seed=4))


def test_every_length_is_drawn_about_as_often():
    counts = Counter(train_lengths(wrapped()))
    assert sorted(counts) == LENGTHS
    assert min(counts.values()) > 70  # of 100 expected


@pytest.mark.parametrize("side", ["train_problem", "heldout_problem"])
def test_an_attempt_records_the_target_and_by_how_much_it_was_missed(side):
    domain, client = wrapped(), Samples()
    for index in range(20):
        problem = getattr(domain, side)(index)
        attempt = asyncio.run(domain.rollout(client, problem))
        target = domain.target_length(problem)
        assert f"Think for {target} tokens" in client.sent[-1][-1]["content"]
        assert attempt.metrics == {
            "judged": 7.0,
            "target_length": target,
            "target_length_error": abs(target - 6),  # two turns of three tokens
        }
        assert (attempt.reward, attempt.success, len(attempt.completions)) == (0.5, True, 2)


def test_the_rest_of_the_inner_domain_passes_through():
    domain, inner = wrapped(), Echo()
    assert (domain.name, domain.train_size, domain.heldout_size) == ("echo", 300, 40)
    assert domain.parts == inner.parts
    assert domain.difficulty(33) == inner.difficulty(33)


@pytest.mark.parametrize(
    ("lengths", "template", "message"),
    [
        ([], THINK, "lengths must be whole numbers of tokens, at least one, not []"),
        ([5, 0], THINK, "lengths must be whole numbers of tokens, at least one, not [5, 0]"),
        ([2.5], THINK, "lengths must be whole numbers of tokens, at least one, not [2.5]"),
        ([5], "{prompt}", "template '{prompt}' does not contain {length}"),
        ([5], "{length}", "template '{length}' does not contain {prompt}"),
    ],
)
def test_an_option_without_meaning_is_refused_in_one_line(lengths, template, message):
    with pytest.raises(ValueError) as refusal:
        TargetLength(Echo(), lengths, template)
    assert str(refusal.value) == message
