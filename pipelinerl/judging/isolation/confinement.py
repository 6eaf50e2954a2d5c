"""Confines a process irrevocably at a level of isolation."""

import errno
import os
from collections.abc import Sequence
from enum import StrEnum

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.judging.isolation import landlock, privileges, seccomp
from pipelinerl.judging.isolation.limits import Limits


class Level(StrEnum):
    """A level of isolation. SECURITY.md documents what each level prevents."""

    PROCESS = "process"  # limits on time, memory and files; no capabilities; a separate session
    SEALED = "sealed"  # additionally: reads only the given paths; no writing, network or new process


class Confinement:
    """A prepared level, which forks of this process enter in less than a millisecond.

    readable: files and directory trees that can be read at `sealed`.
    of_programs: True for programs with input and output of their own, which keep descriptors 0 to 2.
    Raises OSError with the reason if the level is not available on this machine.
    """

    def __init__(self, level: Level, limits: Limits, readable: Sequence[str], of_programs: bool = False):
        self._level = level
        self._of_programs = of_programs
        self._limits = limits
        self._rules: int | None = None
        self._filter = b""
        if level is Level.SEALED:
            self._filter = seccomp.program(of_programs, landlock.version() >= landlock.WITH_TRUNCATION)
            self._rules = landlock.ruleset(readable, [os.devnull] if of_programs else [])

    @property
    def descriptors(self) -> set[int]:
        """The descriptors that a fork must keep open until `enter`."""
        return set() if self._rules is None else {self._rules}

    def enter(self) -> None:
        """Confines this process, which must have one thread, and discards its output, unless of programs."""
        if len(os.listdir("/proc/self/task")) > 1:
            raise OSError(errno.EBUSY, "a process with several threads cannot be confined")
        if not self._of_programs:
            _silence()
        if os.getpgid(0) != os.getpid():
            os.setsid()
        privileges.no_new_privileges()
        privileges.drop_capabilities()
        privileges.undumpable()
        die_with_parent()
        self._limits.apply(count_processes=self._level is Level.PROCESS)
        if self._rules is not None:
            landlock.restrict(self._rules)
            os.close(self._rules)
            seccomp.restrict(self._filter)


def confine(level: Level, limits: Limits, readable: Sequence[str]) -> None:
    """Confines this process, which must have one thread, irrevocably. Call it once, after the imports.

    Raises OSError with the reason if the level is not available on this machine.
    """
    Confinement(level, limits, readable).enter()


def _silence() -> None:
    """Discards the process's output, because judged text that prints could fill a log."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    if nowhere > 2:
        os.close(nowhere)
