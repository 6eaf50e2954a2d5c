"""Puts a process that evaluates text of a model under a level of isolation, for good.

Called by judging's workers. Must not know verifiers or verdicts.
"""

import errno
import os
from collections.abc import Sequence
from enum import StrEnum

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.judging.isolation import landlock, privileges, seccomp
from pipelinerl.judging.isolation.limits import Limits


class Level(StrEnum):
    """How much a worker gives up. SECURITY.md says what each level holds and what it does not."""

    PROCESS = "process"  # limits of time, memory and files; few rights; a session of its own
    SEALED = "sealed"  # and it reads named paths alone, writes none, has no network and no further process


class Confinement:
    """A level made ready, for a maker whose forks enter it: each does so in less than a millisecond.

    readable: paths that can be read at `sealed`, with all that is below.
    Raises OSError with the reason where this machine does not have the level.
    """

    def __init__(self, level: Level, limits: Limits, readable: Sequence[str]):
        self._level = level
        self._limits = limits
        self._rules: int | None = None
        self._filter = b""
        if level is Level.SEALED:
            self._filter = seccomp.program()
            self._rules = landlock.ruleset(readable)

    @property
    def descriptors(self) -> set[int]:
        """The descriptors that a fork must keep until it has entered."""
        return set() if self._rules is None else {self._rules}

    def enter(self) -> None:
        """Confines this process, which must have one thread; its output goes nowhere from here on."""
        if len(os.listdir("/proc/self/task")) > 1:
            raise OSError(errno.EBUSY, "a process with several threads cannot be confined")
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
    """Confines this process, once and for good, after its imports. It must have one thread.

    Raises OSError with the reason where this machine does not have the level.
    """
    Confinement(level, limits, readable).enter()


def _silence() -> None:
    """Judged text that prints would fill a log."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    if nowhere > 2:
        os.close(nowhere)
