"""The messages between the pool and the template of programs."""

from enum import StrEnum

import msgspec

from pipelinerl.judging.isolation import Level, Limits

LONGEST_SOURCE = 1 << 20  # bytes
DESCRIPTORS = 4  # of a request at most: standard input and output, the program, the status of its box
EXECUTED = b'"exit-code"'  # bubblewrap says so in the status of a box if it has executed the program
KILLED_IN_BOX = 137  # bubblewrap's status if SIGKILL has ended the program


class Box(StrEnum):
    """What runs in namespaces of its own, where it has files of its own (`boxes.py`)."""

    PYTHON = "python"  # a program in Python
    BINARY = "binary"  # a compiled program
    COMPILER = "compiler"  # reads C++, and prints the compiled program


class ProgramSetup(msgspec.Struct, frozen=True):
    """The first message to the template.

    wall_s: time of a test without its waits for a processor.
    box: what the template runs in namespaces; None if it runs Python without.
    """

    level: Level
    limits: Limits
    wall_s: float
    box: Box | None = None


class RunProgram(msgspec.Struct, frozen=True, tag=True):
    """A request to run a program. entry: the function to call; None if it reads and prints."""

    worker: int
    entry: str | None
