"""The messages between the pool and the template of programs, and the statuses of programs."""

from enum import IntEnum

import msgspec

from pipelinerl.judging.isolation import Level, Limits

LONGEST_SOURCE = 1 << 20  # bytes
DESCRIPTORS = 3  # of a request: standard input, standard output, the source


class ProgramSetup(msgspec.Struct, frozen=True):
    """The first message to the template. wall_s: time of a test without its waits for a processor."""

    level: Level
    limits: Limits
    wall_s: float


class RunProgram(msgspec.Struct, frozen=True, tag=True):
    """A request to run a program. entry: the function to call; None if it reads and prints."""

    worker: int
    entry: str | None


class Status(IntEnum):
    """What a program's process says at its end. A program can say the same, and gains nothing by it."""

    FINE = 0
    RAISED = 1
    FILES = 121  # it needs a file that the level refuses
    PROCESSES = 122  # it needs a process that the level refuses
    MEMORY = 123


NOT_DECIDED = {Status.FILES: "files", Status.PROCESSES: "processes", Status.MEMORY: "memory"}
