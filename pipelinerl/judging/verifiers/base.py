"""The base class of verifiers, and the judge through which a worker calls them."""

import abc
import pickle
from collections.abc import Mapping
from typing import Any

import msgspec

from contracts.support.messages import shown
from pipelinerl.errors.part_faults import FaultError, describe_fault
from pipelinerl.judging.making import made_of
from pipelinerl.judging.wire import Judgement, undecided

LONGEST_READ = 500  # characters of an answer in the reason
A_JUDGEMENT = "a Judgement(reward, success, outcome)"


class Verifier(abc.ABC):
    """Base class of verifiers. The constructor receives the configured options.

    An exception is a failure of the verifier, and the answer is judged again (`judging.retries`).
    """

    def answer_in(self, text: str) -> str | None:
        """Returns the answer within a text, or None if there is none."""
        return text

    @abc.abstractmethod
    def judge(self, task: Any, answer: str) -> Judgement:
        """Returns the judgement on an answer. `task` is the object that the domain passed to `judged`."""


class Judge:
    """The verifiers of a worker, called by name.

    max_characters: length of the longest answer that is passed to a verifier.
    """

    def __init__(self, verifiers: Mapping[str, Verifier], max_characters: int):
        self._verifiers = verifiers
        self._max_characters = max_characters

    def __call__(self, name: str, task: bytes, text: str) -> Judgement:
        """Returns the judgement. The task is pickled; it comes from the run, never from a model.

        Raises LookupError if the name is not configured. Raises FaultError if the verifier fails or returns
        no Judgement. Errors of the worker's limits are raised unchanged.
        """
        if name not in self._verifiers:
            there = ", ".join(sorted(self._verifiers)) or "none"
            raise LookupError(f"there is no verifier {name}; there are {there}")
        verifier = self._verifiers[name]
        try:
            answer = verifier.answer_in(text)
            if answer is None:
                return Judgement(
                    0.0, False, "no_answer", reason="the text has no answer of the expected form"
                )
            if len(answer) > self._max_characters:
                return undecided("length", f"{len(answer)} characters, of {self._max_characters} at most")
            judgement = verifier.judge(pickle.loads(task), answer)
        except RecursionError:
            return undecided("memory")
        except (MemoryError, BlockingIOError):  # limits of the worker, which handles them
            raise
        except (Exception, SystemExit) as error:
            raise FaultError(describe_fault(verifier, A_JUDGEMENT, error, "judge", "verifier")) from error
        if not isinstance(judgement, Judgement):
            raise FaultError(describe_fault(verifier, A_JUDGEMENT, judgement, "judge", "verifier"))
        reason = judgement.reason or ("" if answer == text else f"answer read: {answer[:LONGEST_READ]}")
        return msgspec.structs.replace(judgement, reason=shown(str(reason)))


def build_judge(verifiers: Mapping[str, Mapping[str, Any]], max_characters: int) -> Judge:
    """Returns a judge with the configured verifiers. Raises ValueError as `make_verifier` does."""
    return Judge({name: make_verifier(name, spec) for name, spec in verifiers.items()}, max_characters)


def make_verifier(name: str, spec: Mapping[str, Any]) -> Verifier:
    """Returns the verifier of a specification: `_target_`, the path of its class, and the class's options.

    Raises ValueError with the verifier's name if the constructor fails or the class is not a Verifier.
    """
    return made_of(name, spec, Verifier)
