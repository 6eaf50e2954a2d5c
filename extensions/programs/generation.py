"""Makes the tests of a problem from a generator of inputs and submissions that are known to be right.

The generator runs with a seed on its standard input, and with `random` seeded by it. What it prints is the
input, or what it writes to a file whose name ends in .in, as CYaRon's generators do.

A test is valid if at least 7 of 10 submissions print the same. A problem is kept if at least 9 of 10 pass all
valid tests. Both are rules of Kimi k1.5 (arXiv 2501.12599, test case generation for coding). Ours is that 40
of a generator's 50 tests must be valid.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from extensions.programs.tasks import Test

SUBMISSIONS = 10  # drawn of those that a problem has
AGREEING = 7
SEEDS = 50
VALID = 40
PASSING = 9
LONGEST_INPUT = 1 << 16  # bytes
SEEDED = """import gc, glob, random, sys
random.seed({seed})
scope = {{"__name__": "__main__"}}
try:
    exec(compile({generator!r}, "generator.py", "exec"), scope)
finally:
    scope.clear()
    gc.collect()  # closes its files
    for file in sorted(glob.glob("**/*.in", recursive=True))[:1]:
        sys.stdout.write("\\0" + open(file).read())
"""
Run = Callable[[str, str], Awaitable[str | None]]  # (program, input) -> output; None if it did not end well


class Unmade(msgspec.Struct, frozen=True):
    """A problem without tests. generator: a program that makes an input."""

    problem_id: str
    statement: str
    generator: str
    submissions: list[str]


@dataclass
class Made:
    """What became of a problem. why_not: why it has no tests; "" if it is kept.

    inputs: number of distinct inputs. agreement: for each test, how many submissions printed the same.
    passing: number of submissions that pass all tests.
    """

    problem: Unmade
    inputs: int = 0
    tests: list[Test] = field(default_factory=list)
    agreement: list[int] = field(default_factory=list)
    passing: int = 0
    why_not: str = ""


async def made_of(problem: Unmade, run: Run, seed: int) -> Made:
    """Returns the problem with its tests, or the reason why it has none."""
    made = Made(problem)
    if len(problem.submissions) < SUBMISSIONS:
        made.why_not = f"fewer than {SUBMISSIONS} submissions"
        return made
    drawn = random.Random(f"{seed}/{problem.problem_id}").sample(problem.submissions, SUBMISSIONS)
    outputs: list[list[str | None]] = []
    inputs = await _inputs(problem.generator, run)
    made.inputs = len(inputs)
    for given in inputs:
        printed = [_normalised(await run(submission, given)) for submission in drawn]
        expected, agreeing = agreed(printed)
        if agreeing >= AGREEING:
            made.tests.append(Test(given, expected))
            made.agreement.append(agreeing)
            outputs.append(printed)
    made.passing = sum(
        all(row[i] == test.expected for row, test in zip(outputs, made.tests, strict=True))
        for i in range(SUBMISSIONS)
    )
    if len(made.tests) < VALID:
        made.why_not = f"fewer than {VALID} valid tests"
    elif made.passing < PASSING:
        made.why_not = f"fewer than {PASSING} submissions pass"
    return made


def agreed(printed: Sequence[str | None]) -> tuple[str, int]:
    """Returns the output that most submissions printed, and their number. What did not end well has none."""
    counts = Counter(output for output in printed if output is not None)
    return counts.most_common(1)[0] if counts else ("", 0)


async def _inputs(generator: str, run: Run) -> list[str]:
    """Returns the distinct inputs that the generator makes of the seeds, none of which is too long."""
    inputs: dict[str, None] = {}
    failed = 0
    for seed in range(SEEDS):
        printed = await run(SEEDED.format(generator=generator, seed=seed), str(seed))
        given = (printed or "").rpartition("\0")[2]  # of a file, if there is one
        if 0 < len(given.encode()) <= LONGEST_INPUT:
            inputs[given] = None
        else:
            failed += 1
        if failed > SEEDS - VALID:  # too few can be left, and each may take its whole time
            break
    return list(inputs)


def _normalised(output: str | None) -> str | None:
    """Returns the output without white space at the ends of lines and without empty last lines."""
    if output is None:
        return None
    return "\n".join(line.rstrip() for line in output.rstrip().split("\n"))
