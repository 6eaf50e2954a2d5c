"""What a program's process says at its end. It is read where nothing else of this project is."""

from enum import IntEnum


class Status(IntEnum):
    """The status of a program's process. A program can say the same, and gains nothing by it."""

    FINE = 0
    RAISED = 1
    FILES = 121  # it needs a file that the level refuses
    PROCESSES = 122  # it needs a process that the level refuses
    MEMORY = 123


NOT_DECIDED = {Status.FILES: "files", Status.PROCESSES: "processes", Status.MEMORY: "memory"}
