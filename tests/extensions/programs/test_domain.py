"""Problems of this package, and attempts of several turns."""

import asyncio

import pytest

from extensions.programs.families import FAMILIES, rows
from extensions.programs.feedback import NO_PROGRAM
from extensions.programs.schemas import drawn, problem_of
from pipelinerl.components import build_domain
from pipelinerl.domains.base import Answer, Problem
from pipelinerl.launcher.composing.compose import compose_config
from tests.builders import completion
from tests.extensions.programs.test_corpora import verifier

SOLVED = {  # by hand: the input, k, and the answer
    "divisible": ([3, 4, 6], 3, 9),
    "greater": ([3, 4, 6], 3, 2),
    "rotate": ([1, 2, 3, 4], 5, [2, 3, 4, 1]),
    "smallest": ([9, 4, 6], 5, 6),
    "run": ([1, 2, 9, 1, 1, 1], 5, 3),
    "window": ([1, 5, 2, 4], 2, 7),
    "pairs": ([1, 2, 2, 3], 4, 2),
    "residues": ([1, 4, 5], 3, 2),
    "modulo": ([7, 8], 5, [2, 3]),
    "prefixes": ([3, 4, 5], 5, [3, 2, 2]),
    "order": ([5, 3, 4, 6], 3, [3, 6, 4, 5]),
    "nearest": ([1, 5, 9], 3, 1),
    "clipped": ([1, 5, 9], 4, 9),
    "caesar": ("xy a", 3, "ab d"),
    "every": ("abcdefg", 3, "adg"),
    "long": ("ab abc a", 1, 2),
    "beginnings": ("abc d", 2, ["ab", "d"]),
    "groups": ("ab cde", 2, "ab-cd-e"),
    "vowels": ("abe", 2, "aabee"),
    "frequent": ("aab b c", 2, "ab"),
    "base": (11, 3, "1 0 2"),
    "digits": (99, 2, 18),
    "coprime": (6, 4, 3),
    "halvings": (11, 2, 4),
}


def test_families_solve_what_they_ask():
    assert {each.name: each.solve(*SOLVED[each.name][:2]) for each in FAMILIES} == {
        name: answer for name, (_, _, answer) in SOLVED.items()
    }


def test_the_made_problems_are_split_by_their_names():
    train, heldout = list(rows("train")), list(rows("heldout"))
    assert (len(train), len(heldout)) == (400, 64)
    assert len({row["statement"] for row in [*train, *heldout]}) == 464
    assert all(len(problem_of("made", row).task.tests) == 10 for row in [*train, *heldout])


class Model:
    """Answers with these programs, one after the other, and is judged by the verifier."""

    def __init__(self, judge, *programs):
        self._judge = judge
        self._programs = iter(programs)
        self.asked = []

    async def chat(self, messages, after=None):
        self.asked.append(messages[-1]["content"])
        return Answer(next(self._programs), completion([1], [2]))

    async def judged(self, verifier, task, text):
        return await self._judge.judged(task, text)


@pytest.mark.parametrize(("last", "outcome"), [("print(input())", "right"), ("print(5)", "wrong")])
def test_a_program_that_fails_a_public_test_goes_back(last, outcome):
    programs = ["I do not know", "```python\nwhile True: pass\n```", f"```python\n{last}\n```", "none"]
    tests = [{"input": str(n), "expected": str(n)} for n in (5, 50)]
    task = problem_of("own", {"statement": "Print it.", "tests": tests}).task

    async def attempted():
        chosen = ["domain=code_made", "domain.turns=3", "inference=scripted", "trainer=scripted"]
        domain = build_domain(compose_config(chosen))
        async with verifier(cpu_s=0.3) as judge:
            model = Model(judge, *programs)
            problem = Problem("p", [{"role": "user", "content": "Print it."}], task.encoded())
            return await domain.rollout(model, problem), model.asked

    attempt, asked = asyncio.run(attempted())
    assert asked == [
        "Print it.",
        NO_PROGRAM,
        "Your program takes too long on this test.\n\nInput:\n5\n\nExpected:\n5\n\nMend it.",
    ]
    assert (attempt.metrics["turns"], len(attempt.completions)) == (3, 3)
    assert attempt.metrics[f"judged_{outcome}"] == 1.0


def test_public_tests_are_kept_and_the_others_are_spaced():
    assert drawn(range(100), 10) == list(range(0, 100, 10))
    tests = [{"input": str(n), "expected": str(n)} for n in range(200)]
    task = problem_of("own", {"statement": "Print it.", "tests": tests, "public": 3}).task
    assert (task.public, len(task.tests)) == (3, 64)
    assert [test.input for test in task.tests[:5]] == ["0", "1", "2", "3", "6"]
