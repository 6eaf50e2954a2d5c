"""The messages between the pool, the template and the workers, and their limits.

A worker that evaluated a hostile text may send anything, so the pool parses only one bounded frame of
declared types from it.
"""

import math
import re
import signal
from typing import Any

import msgspec

from pipelinerl.judging.isolation import Level, Limits
from pipelinerl.judging.wire import Judgement

HEADER_BYTES = 4  # the length of a frame, big-endian
READY = b"\x01"  # a worker's first byte, once it is confined
LONGEST_ANSWER = 1 << 16  # bytes
LONGEST_CONTROL = 1 << 18  # bytes of a message between pool and template
LARGEST_NUMBER = 1e12  # in a judgement; advantages are computed in float32, with squares
MOST_NUMBERS = 64  # largest number of components, and of metrics, of a judgement
LOST = -signal.SIGUSR1  # code of a process that could not begin; a sealed one cannot signal itself
WORDS = 300  # characters of an error that are reported
WORDS_OF_ALL = ("right", "wrong", "no_answer", "undecided")  # outcomes that all verifiers share
REASONS = ("time", "memory", "length", "processes", "output", "meaning")  # why an answer is undecided
NAME = re.compile(r"[\w./:+\- ]{1,80}", re.ASCII)


class Setup(msgspec.Struct, frozen=True):
    """The first message to the template.

    maker: `package.module.name` of the function that creates the judge. The template calls it once, before
        it forks.
    options: keyword arguments of `maker`.
    readable: readable paths in addition to Python and the imported packages.
    reused: verifiers that evaluate no text, so their workers judge many texts. All others need a worker per
        text, because evaluated text can change its process.
    """

    maker: str
    options: dict[str, Any]
    level: Level
    limits: Limits
    readable: list[str] = []
    reused: list[str] = []


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The template has created its judge, or failed with `error`."""

    error: str = ""


class Start(msgspec.Struct, frozen=True, tag=True):
    """A request to the template to start a worker, sent with the descriptor of the worker's channel."""

    worker: int


class End(msgspec.Struct, frozen=True, tag=True):
    """A request to the template to end a worker, which may already have ended."""

    worker: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The end of a worker. `code` is its exit status, or the negative number of the signal that ended it."""

    worker: int
    code: int
    cpu_s: float
    memory_bytes: int  # peak resident memory
    spent_s: float = 0.0  # time that it took without its waits for a processor, where the template looks
    why_not: str = ""  # the limit for which the template has ended it


class Asked(msgspec.Struct, frozen=True):
    verifier: str
    task: bytes
    text: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A worker's reply without a judgement. `why` is memory, processes, output or error."""

    why: str
    words: str = ""


class Judged(msgspec.Struct, frozen=True, tag=True):
    judgement: Judgement


def framed(message: bytes) -> bytes:
    """Returns the message, preceded by its length."""
    return len(message).to_bytes(HEADER_BYTES) + message


def checked(judgement: Judgement) -> Judgement:
    """Returns the judgement. Raises ValueError if a number or a name in it is not permitted."""
    named = (judgement.components, judgement.metrics)
    numbers = [judgement.reward, *(number for numbers in named for number in numbers.values())]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is not finite")
    if any(abs(number) > LARGEST_NUMBER for number in numbers):
        raise ValueError(f"a number is larger than {LARGEST_NUMBER:g}")
    if any(len(numbers) > MOST_NUMBERS for numbers in named):
        raise ValueError(f"there are more than {MOST_NUMBERS} components or metrics")
    word, _, why = judgement.outcome.partition(":")
    if word == "undecided" and why not in REASONS:
        raise ValueError("there is no such reason")
    for name in names_in(judgement):
        if not NAME.fullmatch(name):
            raise ValueError("a name is too long or has other characters than letters, digits and ._/:+-")
    return judgement


def names_in(judgement: Judgement) -> set[str]:
    """Returns the words of the judgement that become names of metrics, without common outcomes."""
    own = {judgement.outcome} if judgement.word not in WORDS_OF_ALL else set()
    return {*own, *judgement.components, *judgement.metrics}


def without_names(judgement: Judgement) -> Judgement:
    """Returns the judgement with a common outcome and without components and metrics."""
    of_all = judgement.word in WORDS_OF_ALL
    outcome = judgement.outcome if of_all else "right" if judgement.success else "wrong"
    return Judgement(judgement.reward, judgement.success, outcome)


def printable(words: str) -> str:
    """Returns the start of a worker's message as one printable line."""
    return " ".join("".join(c if c.isprintable() else " " for c in words[:WORDS]).split())
