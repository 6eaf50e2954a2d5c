"""What a verifier is, and how a worker uses one."""

import abc
import pickle
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from pipelinerl.judging.options import REUSED
from pipelinerl.judging.wire import Judgement, undecided


class Verifier(abc.ABC):
    """Base class of verifiers. The constructor is given the configured options; no answer is there yet.

    An exception counts as a failure of the verifier: the same answer is judged again.
    """

    def answer_in(self, text: str) -> str | None:
        """Returns the part of a text that is judged, or None where there is none."""
        return text

    @abc.abstractmethod
    def judge(self, task: Any, answer: str) -> Judgement:
        """Returns the judgement on an answer. `task` is what the domain sent along with it."""


class Judge:
    """What a worker calls: it knows verifiers by name.

    max_characters: of the longest answer that a verifier is given.
    """

    def __init__(self, verifiers: Mapping[str, Verifier], max_characters: int):
        self._verifiers = verifiers
        self._max_characters = max_characters

    def __call__(self, name: str, task: bytes, text: str) -> Judgement:
        """Returns the judgement. The task is pickled; it comes from the run, never from a model.

        Raises LookupError for a name that is not configured, and what the verifier raises.
        """
        if name not in self._verifiers:
            there = ", ".join(sorted(self._verifiers)) or "none"
            raise LookupError(f"there is no verifier {name}; there are {there}")
        verifier = self._verifiers[name]
        try:
            answer = verifier.answer_in(text)
            if answer is None:
                return Judgement(0.0, False, "no_answer")
            if len(answer) > self._max_characters:
                return undecided("length")
            return verifier.judge(pickle.loads(task), answer)
        except RecursionError:
            return undecided("memory")


def build_judge(verifiers: Mapping[str, Mapping[str, Any]], max_characters: int) -> Judge:
    """Returns a judge of the configured verifiers: of each `_target_`, the path of a class, and its options.

    Raises ValueError, naming the verifier, for one that cannot be made.
    """
    return Judge({name: _made(name, spec) for name, spec in verifiers.items()}, max_characters)


def _made(name: str, spec: Mapping[str, Any]) -> Verifier:
    options = {key: value for key, value in spec.items() if key not in ("_target_", REUSED)}
    try:
        verifier = resolve_name(spec["_target_"])(**options)
        if not isinstance(verifier, Verifier):
            raise TypeError("it makes no pipelinerl.judging.verifiers.Verifier")
        return verifier
    except Exception as error:
        raise ValueError(f"verifier {name} ({spec['_target_']}): {type(error).__name__}: {error}") from error
