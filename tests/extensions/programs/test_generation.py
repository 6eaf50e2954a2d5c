"""Tests that are made by generators equal those of a brute-force oracle, at the exact thresholds too."""

import asyncio
import json

import pytest

from extensions.programs import generate_tests, generation
from extensions.programs.generation import (
    AGREEING,
    PASSING,
    SEEDS,
    SUBMISSIONS,
    VALID,
    Unmade,
    agreed,
    made_of,
)
from extensions.programs.python import Python
from extensions.programs.schemas import problem_of
from pipelinerl.judging.isolation import Level

DOUBLE = "print(2 * int(input()))\n"
GENERATE = "print(10 + int(input()))\n"


def problem(name, right=SUBMISSIONS, others=(), generator="generator"):
    submissions = [f"right {number}" for number in range(right)] + list(others)
    return Unmade(name, "Double it.", generator, submissions)


def made(one, behave):
    """Makes a problem's tests with programs that are functions of their name and input."""

    async def run(program, given):
        return behave(program, given)

    return asyncio.run(made_of(one, run, seed=0))


def doubles(program, given):
    return given if "generator" in program else str(2 * int(given))


def test_all_that_agree_are_kept():
    found = made(problem("all"), doubles)
    assert [(test.input, test.expected) for test in found.tests] == [
        (str(n), str(2 * n)) for n in range(SEEDS)
    ]
    assert (found.passing, found.agreement, found.why_not) == (SUBMISSIONS, [SUBMISSIONS] * SEEDS, "")


@pytest.mark.parametrize(("right", "kept"), [(AGREEING, SEEDS), (AGREEING - 1, 0)])
def test_a_test_needs_seven_that_agree(right, kept):
    others = [f"wrong {number}" for number in range(SUBMISSIONS - right)]

    def behave(program, given):
        return given + program if program.startswith("wrong") else doubles(program, given)

    found = made(problem("agree", right, others), behave)
    assert len(found.tests) == kept
    assert found.why_not == ("fewer than 9 submissions pass" if kept else "fewer than 40 valid tests")


@pytest.mark.parametrize(("inputs", "why_not"), [(VALID, ""), (VALID - 1, "fewer than 40 valid tests")])
def test_a_generator_needs_forty_distinct_inputs(inputs, why_not):
    def behave(program, given):
        return str(int(given) % inputs) if "generator" in program else doubles(program, given)

    assert made(problem("distinct"), behave).why_not == why_not


@pytest.mark.parametrize(
    ("right", "why_not"), [(PASSING, ""), (PASSING - 1, "fewer than 9 submissions pass")]
)
def test_a_problem_needs_nine_that_pass(right, why_not):
    others = [f"fails once {number}" for number in range(SUBMISSIONS - right)]

    def behave(program, given):
        return None if program.startswith("fails") and given == "7" else doubles(program, given)

    assert made(problem("pass", right, others), behave).why_not == why_not


def test_what_crashes_agrees_with_nothing_and_long_inputs_are_none():
    assert agreed([None] * 9 + ["1"]) == ("1", 1)
    assert agreed([None] * 10) == ("", 0)
    long = made(problem("long"), lambda program, given: "1" * 70_000 if "generator" in program else "1")
    assert long.tests == [] and long.why_not == "fewer than 40 valid tests"
    assert made(problem("few", SUBMISSIONS - 1), doubles).why_not == "fewer than 10 submissions"


def test_the_command_makes_a_data_set(tmp_path, capsys):
    planted = [DOUBLE] * 9 + ["raise SystemExit(int(input()) % 2)\n"]
    lines = [
        {"problem_id": "good", "submissions": [DOUBLE] * 10},
        {"problem_id": "nine", "submissions": planted},
        {"problem_id": "few", "submissions": [DOUBLE]},
        {"problem_id": "broken", "submissions": [DOUBLE] * 10, "generator": "raise ValueError\n"},
    ]
    problems = tmp_path / "problems.jsonl"
    rows = [{"statement": f"Double it: {row['problem_id']}.", "generator": GENERATE} | row for row in lines]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "tests.jsonl"
    assert generate_tests.main([str(problems), "--out", str(out)]) == 0
    kept = [problem_of("own", json.loads(line)) for line in out.read_text().splitlines()]
    assert [each.problem_id for each in kept] == ["good", "nine"]
    assert {test.input.strip(): test.expected for test in kept[0].task.tests} == {
        str(10 + n): str(20 + 2 * n) for n in range(SEEDS)
    }
    said = capsys.readouterr().out
    assert "2 kept, with 100 tests; submissions that agree on them: 50 by 9, 50 by 10" in said
    assert "few: fewer than 10 submissions" in said


@pytest.mark.engines
def test_a_generator_may_write_its_input_to_a_file():
    generator = "import random\nprint('made')\nopen('data1.in', 'w').write(str(random.random()))"

    async def ran():
        python = Python(Level.SEALED, generate_tests.LIMITS, generate_tests.CPU_S, 1 << 16)
        await python.start()
        run = generate_tests.running(python)
        try:
            return await generation._inputs(generator, run), await generation._inputs(generator, run)
        finally:
            await python.close()

    inputs, again = asyncio.run(ran())
    assert inputs == again and len(inputs) == SEEDS
    assert all(0 < float(given) < 1 for given in inputs)


LONG = {"problem_id": "x", "statement": "", "generator": "#" * (2**20 + 1), "submissions": []}


@pytest.mark.parametrize("row", [{"problem_id": "x"}, LONG])
def test_a_file_that_is_none_is_refused(tmp_path, capsys, row):
    problems = tmp_path / "problems.jsonl"
    problems.write_text(json.dumps(row))
    assert generate_tests.main([str(problems), "--out", str(tmp_path / "out")]) == 1
    assert "line 1 of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
