"""The verifier of programs: runs them on a problem's tests, and compares their output."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from extensions.programs.compare import COMPARISONS
from extensions.programs.cpp import Cpp
from extensions.programs.extract import NAMES as LANGUAGES
from extensions.programs.extract import program_in
from extensions.programs.messages import LONGEST_SOURCE
from extensions.programs.pool import Ran
from extensions.programs.python import Python
from extensions.programs.tasks import ProgramTask, decoded
from pipelinerl.judging.hosted import HostedVerifier
from pipelinerl.judging.isolation import Level, Limits
from pipelinerl.judging.template import TemplateError, WorkerLostError
from pipelinerl.judging.wire import Judgement, undecided
from pipelinerl.judging.workers import VerifierError

OPEN_FILES = 256
NO_CPP = "programs.language has cpp, which cannot run here"
WHOLE = ("", " whole")
LONGEST_SHOWN = 300  # characters of an output in the reason
UNCOMPILED = {"uncompiled": 1.0}
PYTHON_ALONE = ["python"]  # calls functions
Run = Callable[[bytes], Awaitable[Ran]]  # runs a program on a standard input


@dataclass
class Tally:
    """The tests of a submission: how many passed, their time, and what kept others from a verdict."""

    passed: int = 0
    spent_s: float = 0.0
    why_not: Counter[str] = field(default_factory=Counter)
    first: str = ""  # what the first test that did not pass has shown


class ProgramVerifier(HostedVerifier):
    """Judges the last program in an answer by its output on each test.

    language: of programs: python, cpp, or both. C++ needs the level `namespaces`.
    cpu_s: CPU time of a test, and its time without waits for a processor. submission_cpu_s: of all tests.
    memory_bytes: address space of a program beside the interpreter's. output_bytes: the longest output.
    share: True if the reward is the share of tests that pass. Else all must pass, and no test runs after one
        that does not.
    """

    def __init__(
        self,
        language: Sequence[str] = ("python",),
        cpu_s: float = 4.0,
        submission_cpu_s: float = 30.0,
        memory_bytes: int = 1 << 30,
        output_bytes: int = 1 << 16,
        share: bool = False,
    ):
        if isinstance(language, str) or not language or not set(language) <= set(LANGUAGES):
            raise ValueError(f"programs.language={language} is no list of {', '.join(LANGUAGES)}")
        numbers = {"cpu_s": cpu_s, "submission_cpu_s": submission_cpu_s}
        whole = {"memory_bytes": memory_bytes, "output_bytes": output_bytes}
        for name, value in (numbers | whole).items():
            kinds = int if name in whole else int | float
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
                raise ValueError(f"programs.{name}={value} must be a positive{WHOLE[name in whole]} number")
        if submission_cpu_s < cpu_s:
            raise ValueError(f"programs.submission_cpu_s={submission_cpu_s} is less than cpu_s={cpu_s}")
        if not isinstance(share, bool):
            raise ValueError(f"programs.share={share} must be true or false")
        self._languages = list(language)
        self._cpu_s = cpu_s
        self._submission_cpu_s = submission_cpu_s
        self._memory_bytes = memory_bytes
        self._output_bytes = output_bytes
        self._share = share
        self._python: Python | None = None
        self._cpp: Cpp | None = None

    async def start(self, level: Level) -> None:
        limits = Limits(self._memory_bytes, cpu_s=math.ceil(self._cpu_s) + 1, open_files=OPEN_FILES)
        self._python = Python(level, limits, self._cpu_s, self._output_bytes)
        await self._python.start()
        if "cpp" in self._languages:
            if self._python.lacks:
                raise TemplateError(f"{NO_CPP}: {self._python.lacks}")
            self._cpp = Cpp(limits, self._cpu_s, self._output_bytes)
            try:
                await self._cpp.start()
            except (TemplateError, WorkerLostError) as error:
                raise TemplateError(f"{NO_CPP}: {error}") from error

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in (self._python, self._cpp) if each))

    @property
    def level(self) -> str:
        return self._python.words

    async def judged(self, task: bytes, text: str) -> Judgement:
        """Returns the judgement.

        Metrics: the tests that passed and their share, and the seconds of all; or that it does not compile.
        """
        try:
            tests = decoded(task)
        except msgspec.MsgspecError as error:
            raise VerifierError(f"the task of a program cannot be read: {error}") from error
        found = program_in(text, PYTHON_ALONE if tests.entry else self._languages)
        if found is None:
            return Judgement(0.0, False, "no_answer", reason="the text has no program")
        language, program = found
        source = program.encode(errors="replace")
        if len(source) > LONGEST_SOURCE:
            return undecided("length")
        if language == "python":
            run = partial(self._python.run, source, tests.entry)
        else:
            compiled = await self._cpp.compiled(source)
            if not compiled.is_fine:
                why_not = compiled.why_not
                outcome = f"undecided:{why_not}" if why_not else "wrong"
                return Judgement(0.0, False, outcome, metrics=UNCOMPILED, reason="it does not compile")
            run = partial(self._cpp.run, compiled.output)
        return self._judgement(tests, await self._tried(tests, run))

    async def _tried(self, task: ProgramTask, run: Run) -> Tally:
        tally = Tally()
        compare = COMPARISONS[task.compare]
        for number, test in enumerate(task.tests, 1):
            if tally.spent_s > self._submission_cpu_s:
                tally.why_not["time"] += 1
                tally.first = tally.first or f"test {number} was not run: the tests before took too long"
                break
            ran = await run(test.input.encode())
            tally.spent_s += ran.spent_s
            if is_right(ran, test.expected, compare):
                tally.passed += 1
                continue
            tally.why_not[ran.why_not] += 1
            tally.first = tally.first or f"test {number}: {_described(ran, test.expected)}"
            if not self._share:
                break
        return tally

    def _judgement(self, task: ProgramTask, tally: Tally) -> Judgement:
        share = tally.passed / len(task.tests)
        metrics = {"tests_passed": float(tally.passed), "test_share": share, "program_s": tally.spent_s}
        is_solved = tally.passed == len(task.tests)
        if is_solved:
            return Judgement(1.0, True, "right", metrics=metrics)
        why_not = next(iter(tally.why_not))  # of the first test that did not pass
        outcome = f"undecided:{why_not}" if why_not else "wrong"
        reward = share if self._share else 0.0
        reason = f"{tally.passed} of {len(task.tests)} tests passed; {tally.first}"
        return Judgement(reward, False, outcome, metrics=metrics, reason=reason)


def _described(ran: Ran, expected: str) -> str:
    if ran.why_not:
        return f"it was ended by its limit of {ran.why_not}"
    printed = repr(ran.output.decode(errors="replace")[:LONGEST_SHOWN])
    ended = "" if ran.is_fine else ", and ended with an error"
    return f"printed {printed}{ended}; expected {expected[:LONGEST_SHOWN]!r}"


def is_right(ran: Ran, expected: str, compare: Callable[[str, str], bool]) -> bool:
    """Returns True if the program ended well and printed what is expected."""
    try:
        return ran.is_fine and compare(ran.output.decode(), expected)
    except UnicodeDecodeError:
        return False
