"""What a judgement says to people: the answer that was read, or what the verifier found."""

import pickle

import pytest

from extensions.math.verifier import MathVerifier
from pipelinerl.judging.verifiers import Verifier
from pipelinerl.judging.verifiers.base import Judge
from pipelinerl.judging.wire import Judgement


class LastWord(Verifier):
    """Gives a reason for wrong answers alone."""

    def answer_in(self, text):
        return text.split()[-1] if text.strip() else None

    def judge(self, task, answer):
        if answer == task:
            return Judgement(1.0, True, "right")
        return Judgement(0.0, False, "wrong", reason=f"\x1b[31m{answer}\u202e is not {task}\ud800")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("it is 4", "answer read: 4"),
        ("4", ""),
        ("so 5", r"\x1b[31m5\u202e is not 4\ud800"),
        (" ", "the text has no answer of the expected form"),
        ("a" * 100, "100 characters, of 99 at most"),
    ],
)
def test_the_reason_is_the_verifiers_own_or_what_it_read(text, reason):
    judge = Judge({"v": LastWord()}, max_characters=99)
    assert judge("v", pickle.dumps("4"), text).reason == reason


def test_a_box_that_was_read():
    judge = Judge({"math": MathVerifier()}, max_characters=99)
    judgement = judge("math", pickle.dumps("7"), r"So it is \boxed{12}.")
    assert (judgement.outcome, judgement.reason) == ("wrong", "answer read: 12")
