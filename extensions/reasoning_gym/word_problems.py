"""Makes files of word problems for domain=math from reasoning-gym's gsm_symbolic, without a network.

The problems are short, with small integer answers, in the schema of Open-Reasoner-Zero's data set. `made_by`
of a source names a function of this file, which any process that needs the file calls, with the same result.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow
import pyarrow.parquet

from contracts.support.files import replaced_atomically
from extensions.reasoning_gym.domain import ReasoningGym
from pipelinerl.domains.base import Problem

TRAIN_PROBLEMS = 2000
HELDOUT_PROBLEMS = 128
LONGEST = 170  # characters
ANSWERS = {str(number) for number in range(21)}  # few, so that a guess is sometimes right
WITHOUT_THE_LIBRARYS_REQUEST = r"(?s)(.*?) Give the result as your final answer"


def make_train(path: Path) -> None:
    _write(path, _gsm_symbolic().train_problem, TRAIN_PROBLEMS)


def make_heldout(path: Path) -> None:
    _write(path, _gsm_symbolic().heldout_problem, HELDOUT_PROBLEMS)


def _gsm_symbolic() -> ReasoningGym:
    return ReasoningGym("gsm_symbolic", prompt_pattern=WITHOUT_THE_LIBRARYS_REQUEST, seed=0)


def _write(path: Path, problem: Callable[[int], Problem], size: int) -> None:
    """Writes the file atomically, because several processes may make it at the same time."""
    answers: dict[str, str] = {}
    for index in count():
        if len(answers) == size:
            break
        question = problem(index).messages[-1]["content"]
        answer = problem(index).data["answer"]
        if len(question) <= LONGEST and answer in ANSWERS:
            answers[question] = answer
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_atomically(path) as unfinished:
        rows = [_row(question, answer) for question, answer in answers.items()]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), unfinished)


def _row(question: str, answer: str) -> dict[str, dict]:
    return {
        "0": {"from": "human", "value": question},
        "1": {"from": "assistant", "ground_truth": {"value": answer}},
    }
