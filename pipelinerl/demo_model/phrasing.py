"""How the lessons put a question and its answer: plainly, or with thinking before the answer.

A phrasing names the domain whose prompts and judge it fits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from pipelinerl.domains.thinking_sums import MARK, THOUGHT

DOMAINS = Path(__file__).parents[2] / "conf" / "domain"

Messages = list[dict[str, str]]


class Text(NamedTuple):
    """A lesson in words."""

    messages: Messages
    given: str  # how the solution begins, where that is not to be learnt
    learnt: str


Put = Callable[[Messages, int, Random], Text]


@dataclass(frozen=True)
class Plain:
    """The question as it is, and the answer alone."""

    domain_config = DOMAINS / "reasoning_gym.yaml"
    max_tokens = 8  # the longest answer has four characters and the end

    def taught(self, messages: Messages, answer: int, random: Random) -> Text:
        """As it is put while the task is taught."""
        return Text(messages, "", str(answer))

    def thought(self, messages: Messages, answer: int, random: Random) -> Text:
        """As it is put once the task is known."""
        return self.taught(messages, answer, random)


PLAIN = Plain()


@dataclass(frozen=True)
class Thinking(Plain):
    """The answer after any number of thoughts, which tells nothing: neither of the question, nor of whether
    the answer is right, nor of the length that a part of the prompts name. Those are as the domain
    `TargetLength` makes them, so that a model can read past that length; it never sees one that is kept.

    Thoughts are given first, and learnt in a lesson of their own: a number that follows from nothing would
    drown what is there to be learnt. It comes before the slips, or what undoes these would undo it too.
    """

    most_thoughts: int = 12  # all numbers from 0 are as frequent
    asked_share: float = 0.5  # of the prompts: they name a length
    shortest_asked: int = 4
    longest_asked: int = 16
    answer_steps: int = 250  # the known sums, answered at many places
    thinking_steps: int = 100

    domain_config = DOMAINS / "thinking_sums.yaml"
    max_tokens = 20

    def taught(self, messages: Messages, answer: int, random: Random) -> Text:
        return Text(self._asking(messages, random), self._thoughts(random), str(answer))

    def thought(self, messages: Messages, answer: int, random: Random) -> Text:
        return Text(self._asking(messages, random), "", f"{self._thoughts(random)}{answer}")

    def _thoughts(self, random: Random) -> str:
        return THOUGHT * random.randint(0, self.most_thoughts) + MARK

    def _asking(self, messages: Messages, random: Random) -> Messages:
        if random.random() >= self.asked_share:
            return messages
        length = random.randint(self.shortest_asked, self.longest_asked)
        *before, question = messages
        return [*before, question | {"content": f"{length} {question['content']}"}]


THINKING = Thinking()
