import asyncio

import pytest

from extensions.demo.domains.guessing import Guessing, reply_to
from pipelinerl.domains.base import Answer
from tests.builders import completion


class Halving:
    """Answers in the middle of what is left; `says` overrules it at a turn."""

    def __init__(self, highest: int, says: dict[int, str] | None = None):
        self._low, self._high, self._says, self.heard = 1, highest, says or {}, []

    async def chat(self, messages, after=None):
        assert (after is None) == (not self.heard)
        self.heard.append(messages[-1]["content"])
        middle = (self._low + self._high) // 2
        if self.heard[-1] == "higher":
            self._low = self._middle + 1
        elif self.heard[-1] == "lower":
            self._high = self._middle - 1
        middle = self._middle = (self._low + self._high) // 2
        return Answer(self._says.get(len(self.heard), str(middle)), completion([1], [2]))


def attempt(domain: Guessing, index: int, says: dict[int, str] | None = None):
    return asyncio.run(domain.rollout(Halving(1024, says), domain.train_problem(index)))


def test_halving_finds_every_number_in_eleven_turns():
    domain = Guessing()
    attempts = [attempt(domain, index) for index in range(domain.train_size)]
    assert all(a.success and a.reward == 1.0 for a in attempts)
    turns = [a.metrics["turns"] for a in attempts]
    assert max(turns) in (10.0, 11.0) and [len(a.completions) for a in attempts] == turns


def test_too_few_turns_and_what_is_no_number_fail():
    hard = next(i for i in range(700) if Guessing().train_problem(i).data == 1001)
    assert not attempt(Guessing(turns=3), hard).success
    unsaid = attempt(Guessing(), hard, {2: "7 or 8"})
    assert not unsaid.success and unsaid.metrics["turns"] == 2


def test_an_eighth_is_held_out_whatever_the_seed():
    domain, other = Guessing(highest=100, seed=1), Guessing(highest=100, seed=2)
    heldout = [domain.heldout_problem(i) for i in range(domain.heldout_size)]
    assert heldout == [other.heldout_problem(i) for i in range(12)]
    numbers = {p.data for p in heldout} | {domain.train_problem(i).data for i in range(domain.train_size)}
    assert numbers == set(range(1, 101)) and domain.train_size == 88


@pytest.mark.parametrize(
    ("text", "reply"),
    [("4", "higher"), (" 6\n", "lower"), ("5", None), ("", None), ("-4", None), ("4.", None)],
)
def test_replies(text, reply):
    assert reply_to(text, 5) == reply
