"""What a program is judged by. The judging service reads a task itself, so it is no pickle."""

from typing import Literal

import msgspec

from pipelinerl.judging.wire import Encoded

MOST_TESTS = 64
Mode = Literal["stdin", "function"]
Compare = Literal["lines", "tokens", "floats", "json", "wrapped"]


class Test(msgspec.Struct, frozen=True):
    """input: standard input, or the JSON list of a function's arguments. expected: output, or JSON."""

    __test__ = False  # no class of tests, for pytest

    input: str
    expected: str


class ProgramTask(msgspec.Struct, frozen=True):
    """The tests of a problem.

    mode: stdin if the program reads and prints; function if it defines `entry`, itself or in a `Solution`.
    compare: how an output is compared with the expected one (`compare.py`).
    public: number of tests, from the first, that the model may see after an answer.
    """

    tests: list[Test]
    mode: Mode = "stdin"
    entry: str | None = None
    compare: Compare = "lines"
    public: int = 1

    def __post_init__(self) -> None:
        if not self.tests:
            raise ValueError("a problem has no tests")
        if len(self.tests) > MOST_TESTS:
            raise ValueError(f"a problem has {len(self.tests)} tests, and {MOST_TESTS} is the most")
        if not 0 <= self.public <= len(self.tests):
            raise ValueError(f"a problem has {len(self.tests)} tests, of which {self.public} are public")
        if (self.mode == "function") != bool(self.entry and self.entry.isidentifier()):
            raise ValueError(f"mode={self.mode} does not go with entry={self.entry!r}")

    def alone(self, test: Test) -> "ProgramTask":
        """Returns the task with this test alone."""
        return msgspec.structs.replace(self, tests=[test], public=0)

    def encoded(self) -> "EncodedTask":
        return EncodedTask(msgspec.msgpack.encode(self))


class EncodedTask(Encoded):
    def __repr__(self) -> str:
        """Returns the task in words, for the plan."""
        task = decoded(self)
        what = f"the function {task.entry}" if task.entry else "standard input"
        first = f"{task.tests[0].input!r} -> {task.tests[0].expected!r}"
        return f"{len(task.tests)} tests of {what}, {task.public} of them public, by {task.compare}: {first}"


def decoded(task: bytes) -> ProgramTask:
    """Returns the task. Raises msgspec.MsgspecError if it is none."""
    return msgspec.msgpack.decode(task, type=ProgramTask)
