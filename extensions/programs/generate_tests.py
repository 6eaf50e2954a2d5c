"""Makes tests for problems that have none, from generators of inputs and submissions known to be right.

    python -m extensions.programs.generate_tests PROBLEMS.jsonl --out TESTS.jsonl [--seed 0] [--at-once 2]

A line of PROBLEMS.jsonl has problem_id, statement, generator and submissions. A generator is a program that
prints an input, or writes it to a file whose name ends in .in. TESTS.jsonl has the kept problems in the
schema `own` of domain=code.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import msgspec

from contracts.support.command_line import command_parser
from contracts.support.files import write_atomically
from contracts.support.messages import one_line
from extensions.programs.generation import Made, Run, Unmade, made_of
from extensions.programs.messages import LONGEST_SOURCE
from extensions.programs.python import Python
from pipelinerl.judging.isolation import Level, Limits, imported_paths, strongest_level
from pipelinerl.judging.template import TemplateError, WorkerLostError

CPU_S = 4.0  # of a program on one input
LIMITS = Limits(memory_bytes=1 << 30, cpu_s=ceil(CPU_S) + 1)
OUTPUT_BYTES = 1 << 16
DECODER = msgspec.json.Decoder(Unmade)


class GenerationError(Exception):
    """Tests cannot be made. The message is printed as it is."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = command_parser("extensions.programs.generate_tests", __doc__)
    parser.add_argument("problems", type=Path, help="the problems, a line each")
    parser.add_argument("--out", type=Path, required=True, help="where the kept problems are written")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of submissions")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="problems at the same time")
    given = parser.parse_args(arguments)
    try:
        if given.out.resolve() == given.problems.resolve():
            raise GenerationError(f"--out={given.out} would overwrite the problems; name another file")
        if not given.out.absolute().parent.is_dir():
            raise GenerationError(f"there is no directory {given.out.absolute().parent}")
        problems = read(given.problems)
        made = asyncio.run(generated(problems, given.seed, given.at_once))
        write_atomically(given.out, "".join(rows(made)))
    except (GenerationError, TemplateError, WorkerLostError, OSError) as error:
        print(f"generate_tests: {one_line(error)}", file=sys.stderr)
        return 1
    print(report(made))
    return 0


def read(path: Path) -> list[Unmade]:
    """Returns the problems of a file. Raises GenerationError for a line that is none, or one name twice."""
    found: dict[str, Unmade] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            problem = DECODER.decode(line)
        except msgspec.MsgspecError as error:
            raise GenerationError(f"line {number} of {path}: {error}") from None
        if any(
            len(program.encode()) > LONGEST_SOURCE for program in [problem.generator, *problem.submissions]
        ):
            raise GenerationError(f"line {number} of {path}: a program has more than {LONGEST_SOURCE} bytes")
        if problem.problem_id in found:
            raise GenerationError(f"line {number} of {path}: there are two problems {problem.problem_id!r}")
        found[problem.problem_id] = problem
    if not found:
        raise GenerationError(f"{path} has no problem")
    return list(found.values())


async def generated(problems: list[Unmade], seed: int, at_once: int) -> list[Made]:
    """Makes the tests of the problems. Raises GenerationError on a machine that cannot seal programs."""
    level, why_not = strongest_level(imported_paths())
    if level is not Level.SEALED:
        raise GenerationError(f"generators and submissions are not run at the level {level}: {why_not}")
    python = Python(level, LIMITS, CPU_S, OUTPUT_BYTES)
    free = asyncio.Semaphore(at_once)

    async def one(problem: Unmade) -> Made:
        async with free:
            made = await made_of(problem, running(python), seed)
            print(
                f"{problem.problem_id}: {made.why_not or f'kept, {len(made.tests)} tests'}", file=sys.stderr
            )
            return made

    try:
        await python.start()
        if python.lacks:
            print(f"generate_tests: programs cannot write files: {python.lacks}", file=sys.stderr)
        return list(await asyncio.gather(*map(one, problems)))
    finally:
        await python.close()


def running(python: Python) -> Run:
    """Returns the function that runs a program and returns what it printed, if it ended well."""

    async def run(program: str, given: str) -> str | None:
        ran = await python.run(program.encode(), None, given.encode())
        return ran.output.decode(errors="replace") if ran.is_fine else None

    return run


def rows(made: list[Made]) -> Iterator[str]:
    """Yields a line for each kept problem, in the schema `own`."""
    for each in made:
        if not each.why_not:
            tests = [{"input": test.input, "expected": test.expected} for test in each.tests]
            row = {"problem_id": each.problem.problem_id, "statement": each.problem.statement, "tests": tests}
            yield msgspec.json.encode(row).decode() + "\n"


def report(made: list[Made]) -> str:
    """Returns the counts of each stage, and why each problem that left did."""
    reasons = Counter(each.why_not for each in made)
    kept = reasons.pop("", 0)
    lines = [f"{len(made)} problems", *(f"{count} left: {reason}" for reason, count in reasons.items())]
    tests = sum(len(each.tests) for each in made if not each.why_not)
    agreement = Counter(count for each in made if not each.why_not for count in each.agreement)
    agreed = ", ".join(f"{tests} by {count}" for count, tests in sorted(agreement.items()))
    lines.append(f"{kept} kept, with {tests} tests; submissions that agree on them: {agreed or 'none'}")
    lines += [f"  {each.problem.problem_id}: {_left(each)}" for each in made if each.why_not]
    return "\n".join(lines)


def _left(made: Made) -> str:
    of_inputs = f"{len(made.tests)} valid of {made.inputs} inputs"
    return f"{made.why_not} ({of_inputs}{f', {made.passing} submissions pass' if made.tests else ''})"


if __name__ == "__main__":
    sys.exit(main())
