"""What a model is told about its program, in an attempt of several turns."""

from extensions.programs.tasks import Test
from pipelinerl.judging.wire import Judgement

SHOWN = 1000  # characters of an input, or of an output
NO_PROGRAM = "There is no program in your answer. Put it in one block of code that names its language."
UNCOMPILED = "Your program does not compile, or not within the limits. Mend it."
LIMITS = {
    "time": "takes too long",
    "memory": "needs too much memory",
    "output": "prints too much",
    "files": "needs files that it may not write",
    "processes": "starts a process, which it may not",
    "length": "is too long",
}


def feedback(judgement: Judgement, test: Test) -> str:
    """Returns the message about a program that failed this test."""
    if judgement.word == "no_answer":
        return NO_PROGRAM
    if "uncompiled" in judgement.metrics:
        return UNCOMPILED
    why = judgement.outcome.partition(":")[2]
    what = LIMITS.get(why, "is wrong")
    given, expected = map(_shown, (test.input, test.expected))
    return f"Your program {what} on this test.\n\nInput:\n{given}\n\nExpected:\n{expected}\n\nMend it."


def _shown(text: str) -> str:
    return text.strip() if len(text) <= SHOWN else f"{text[:SHOWN]} ..."
