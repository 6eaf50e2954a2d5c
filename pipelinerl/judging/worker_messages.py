"""What crosses between the pool, the template and the workers, and how much of it.

Called by `workers` and `worker`. Must not know verifiers. The pool parses nothing that a worker sends but
one bounded frame of declared types: a worker that evaluated a hostile text may send anything.
"""

import math
import re
from typing import Any

import msgspec

from pipelinerl.judging.isolation import Level, Limits
from pipelinerl.judging.wire import Judgement

HEADER_BYTES = 4  # the length of a frame, big-endian
READY = b"\x01"  # a worker's first byte, once it is confined
LONGEST_ANSWER = 1 << 16  # bytes
LONGEST_CONTROL = 1 << 18  # bytes of a message between pool and template
LARGEST_NUMBER = 1e12  # of a judgement; advantages are computed in 32 bits, squares too
MOST_NUMBERS = 64  # components, and metrics, of a judgement
WORDS = 300  # characters of an error that are told
WORDS_OF_ALL = ("right", "wrong", "no_answer", "undecided")  # outcomes of any verifier
LIMITS = ("time", "memory", "length", "processes", "output")  # that a text may have met
NAME = re.compile(r"[\w./:+\- ]{1,80}", re.ASCII)


class Setup(msgspec.Struct, frozen=True):
    """What the template is told once: the first message to it.

    maker: `package.module.name` of what makes the judge; it is called once, in the template, with the
        options. What it imports and warms up is there in every worker.
    options: its keyword arguments.
    readable: paths besides those of Python and the imported packages.
    reused: verifiers that evaluate nothing of a text: their workers judge one text after another. All others
        have a worker for each text, for what is evaluated can change its process.
    """

    maker: str
    options: dict[str, Any]
    level: Level
    limits: Limits
    readable: list[str] = []
    reused: list[str] = []


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The template has its judge; or, with words, it has not."""

    error: str = ""


class Start(msgspec.Struct, frozen=True, tag=True):
    """Asks the template for a worker; the worker's end of the channel comes with it."""

    worker: int


class End(msgspec.Struct, frozen=True, tag=True):
    """Asks the template to end a worker, which may have ended by itself."""

    worker: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A worker is gone. `code` is its exit status, or less than 0: the signal that ended it."""

    worker: int
    code: int
    cpu_s: float
    memory_bytes: int  # the most that was resident


class Asked(msgspec.Struct, frozen=True):
    """What a worker is asked."""

    verifier: str
    task: bytes
    text: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A worker has no judgement: `why` is memory, processes, output or error."""

    why: str
    words: str = ""


class Judged(msgspec.Struct, frozen=True, tag=True):
    """A worker has a judgement."""

    judgement: Judgement


def framed(message: bytes) -> bytes:
    """Returns the message with its length before it."""
    return len(message).to_bytes(HEADER_BYTES) + message


def checked(judgement: Judgement) -> Judgement:
    """Returns the judgement as it is. Raises ValueError for one that must not reach a log or a loss."""
    named = (judgement.components, judgement.metrics)
    numbers = [judgement.reward, *(number for numbers in named for number in numbers.values())]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is not finite")
    if any(abs(number) > LARGEST_NUMBER for number in numbers):
        raise ValueError(f"a number is larger than {LARGEST_NUMBER:g}")
    if any(len(numbers) > MOST_NUMBERS for numbers in named):
        raise ValueError(f"there are more than {MOST_NUMBERS} components or metrics")
    word, _, why = judgement.outcome.partition(":")
    if word == "undecided" and why not in LIMITS:
        raise ValueError("there is no such limit")
    for name in names_in(judgement):
        if not NAME.fullmatch(name):
            raise ValueError("a name is too long or has other characters than letters, digits and ._/:+-")
    return judgement


def names_in(judgement: Judgement) -> set[str]:
    """Returns the words of a judgement that become names of metrics, without those that every one may use."""
    own = {judgement.outcome} if judgement.word not in WORDS_OF_ALL else set()
    return {*own, *judgement.components, *judgement.metrics}


def without_names(judgement: Judgement) -> Judgement:
    """Returns what the judgement is worth, in words that every one may use."""
    of_all = judgement.word in WORDS_OF_ALL
    outcome = judgement.outcome if of_all else "right" if judgement.success else "wrong"
    return Judgement(judgement.reward, judgement.success, outcome)


def printable(words: str) -> str:
    """Returns the beginning of words of a worker as one line, which a log and a terminal can take."""
    return " ".join("".join(c if c.isprintable() else " " for c in words[:WORDS]).split())
