"""Reads the corpora of programs: honest.txt and hostile.txt."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
START = "=== "  # of a program: its name, `|`, and what it must get
INPUT = "--- input\n"
OUTPUT = "--- output\n"


@dataclass(frozen=True)
class Program:
    """outcome: what the verifier must say, a pattern. kind: a group of names, before the first colon."""

    name: str
    outcome: str
    source: str
    given: str
    expected: str

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def answer(self) -> str:
        return f"```python\n{self.source}```"


def programs(file: str) -> list[Program]:
    _, *parts = ("\n" + (HERE / file).read_text()).split("\n" + START)
    return [_program(part + "\n") for part in parts]


def _program(part: str) -> Program:
    head, _, rest = part.partition("\n")
    name, _, outcome = head.partition(" | ")
    rest, _, expected = rest.partition(OUTPUT)
    source, _, given = rest.partition(INPUT)
    return Program(name, outcome or "right", source, given, expected)
