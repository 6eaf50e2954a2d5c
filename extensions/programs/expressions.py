"""The domain of expressions: a program of one line is found from three of its results.

A problem shows f(0), f(1) and f(2); the answer is an expression in x, such as `3*x+17`. It is put into a
program, which judging runs on other numbers. So a small model learns to program in minutes.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from extensions.programs.domain import VERIFIER
from extensions.programs.tasks import ProgramTask, Test
from extensions.programs.verifier import ProgramVerifier
from pipelinerl.domains.base import Attempt, ChatClient, Problem, Verified, judged_attempt
from pipelinerl.judging.options import HOSTED

SLOPES = range(2, 40)
CONSTANTS = range(1, 100)
SHOWN = (0, 1, 2)
TRIED = (3, 10, 57)  # the numbers of the test
HELD_OUT_ONE_IN = 8
LONGEST_S = 60.0


class Expressions(Verified):
    """Linear expressions in x. A fixed eighth of them is held out.

    programs: options of `ProgramVerifier`. seed: ignored.
    """

    name = "expressions"

    def __init__(self, programs: Mapping[str, Any], seed: int = 0):
        ProgramVerifier(**programs)  # raises an error for wrong options, before the start
        super().__init__({"_target_": VERIFIER, HOSTED: LONGEST_S, **programs})
        every = [(slope, constant) for slope in SLOPES for constant in CONSTANTS]
        self._heldout = [pair for pair in every if _is_held_out(pair)]
        self._train = [pair for pair in every if not _is_held_out(pair)]
        self.train_size = len(self._train)
        self.heldout_size = len(self._heldout)

    def train_problem(self, index: int) -> Problem:
        return self._problem(*self._train[index])

    def heldout_problem(self, index: int) -> Problem:
        return self._problem(*self._heldout[index])

    def train_expression(self, index: int) -> tuple[int, int]:
        """Returns the slope and the constant of a training problem."""
        return self._train[index]

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        judgement = await self.judged(client, problem, program_of(answer.text))
        return judged_attempt([answer.completion], judgement)

    def _problem(self, slope: int, constant: int) -> Problem:
        shown = " ".join(f"f({x})={slope * x + constant}" for x in SHOWN)
        results = "\n".join(str(slope * x + constant) for x in TRIED)
        task = ProgramTask([Test(" ".join(map(str, TRIED)), results)]).encoded()
        return Problem(f"{self.name}/{slope}/{constant}", [{"role": "user", "content": shown}], task)


def program_of(expression: str) -> str:
    """Returns an answer whose program prints the value of the expression for each number that it reads."""
    return f"```python\nfor x in map(int, input().split()):\n    print({expression.strip()})\n```"


def _is_held_out(pair: tuple[int, int]) -> bool:
    digest = hashlib.sha256(f"{pair}".encode()).digest()
    return digest[0] % HELD_OUT_ONE_IN == 0
