"""The verifiers of the two tasks: the last number of an answer, and an answer that is a JSON object."""

import json
import re
from decimal import Decimal

from pipelinerl.judging.verifiers import Verifier
from pipelinerl.judging.wire import Judgement

# In "8-1" the hyphen is no sign; "1,007" is one number.
NUMBER = re.compile(r"(?<!\d)(?<!\d\.)-?(?:\d{1,3}(?:,\d{3})+|\d{1,30})(?:\.\d{1,30})?")
FENCED = re.compile(r"```(?:json)?\n(.*?)\n?```", re.DOTALL)


class LastNumber(Verifier):
    """Compares the last number of an answer with the right one, which is the task.

    Metrics: numbers, how many the answer has; exact, 1 if it is the right one and nothing else, but for a
    full stop. An answer of many numbers is a guess, which the first metric shows.
    """

    def judge(self, task: str, answer: str) -> Judgement:
        numbers = NUMBER.findall(answer)
        metrics = {"numbers": float(len(numbers)), "exact": float(answer.strip().removesuffix(".") == task)}
        if not numbers:
            return Judgement(0.0, False, "no_answer", metrics=metrics, reason="no number")
        right = Decimal(numbers[-1].replace(",", "")) == Decimal(task)
        outcome = "right" if right else "wrong"
        return Judgement(float(right), right, outcome, metrics=metrics, reason=f"last number {numbers[-1]}")


class JsonObject(Verifier):
    """Compares an answer, which may be a fenced block, with a JSON object of the same keys and values.

    Metrics: json, 1 if the answer is any JSON object.
    """

    def answer_in(self, text: str) -> str:
        fenced = FENCED.fullmatch(text.strip())
        return fenced[1] if fenced else text

    def judge(self, task: dict[str, str | int], answer: str) -> Judgement:
        reason = ""
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError) as error:
            found = None
            reason = f"no JSON: {error}"
        is_object = isinstance(found, dict)
        right = is_object and _typed(found) == _typed(task)
        outcome = "right" if right else "wrong" if is_object else "no_answer"
        return Judgement(float(right), right, outcome, metrics={"json": float(is_object)}, reason=reason)


def _typed(card: dict[str, object]) -> dict[str, tuple[str, object]]:
    """Returns the values with their types, because True equals 1."""
    return {key: (type(value).__name__, value) for key, value in card.items()}
