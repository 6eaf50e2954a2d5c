"""The verifier that calls the scorers of reasoning-gym."""

from collections.abc import Mapping
from typing import Any

from reasoning_gym.factory import create_dataset
from reasoning_gym.utils import extract_answer

from extensions.reasoning_gym.expressions import secure
from pipelinerl.judging.verifiers.base import Verifier
from pipelinerl.judging.wire import Judgement

SOLVED = 0.99  # some of the library's scorers reach 1.0 only up to rounding


class ReasoningGymVerifier(Verifier):
    """Returns the library's score, from 0 to 1. The task to judge is an entry of a dataset.

    task: name of the library's task.
    options: fields of the task's config.
    after: mark that precedes the answer; null judges the last `<answer>`, or the full text if there is none.
    """

    def __init__(self, task: str, options: Mapping[str, Any], after: str | None = None):
        secure()
        self._scorer = create_dataset(task, **options, seed=0, size=1)
        self._after = after
        sample = self._scorer[0]
        self._scorer.score_answer(sample["answer"], sample)  # imports modules before the process is confined

    def answer_in(self, text: str) -> str | None:
        if self._after:
            _, marked, text = text.rpartition(self._after)
            if not marked:
                return None
        answer = extract_answer(text)
        return text.strip() if answer is None else answer

    def judge(self, task: dict[str, Any], answer: str) -> Judgement:
        """Returns the judgement. If the scorer raises, the answer is wrong and `scorer_raised` is 1."""
        try:
            score = float(self._scorer.score_answer(answer, task))
        except (MemoryError, RecursionError):
            raise
        except (Exception, SystemExit) as error:
            reason = f"the scorer raised {type(error).__name__}: {error} for {answer:.200}"
            return Judgement(0.0, False, "wrong", metrics={"scorer_raised": 1.0}, reason=reason)
        success = score >= SOLVED
        partly = f"the task's scorer gives {score:.2g} for {answer:.200}" if 0 < score < SOLVED else ""
        return Judgement(score, success, "right" if success else "wrong", reason=partly)
