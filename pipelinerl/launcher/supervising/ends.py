"""What the end of a job means for its run, and when the job is started again. Pure: times are given.

Called by the modules that tend the jobs. A job that ends often is started later and later, and at last not
at all.
"""

import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pipelinerl.launcher.executors.base import Draining, Ended, Fate, Lost, Running
from pipelinerl.launcher.wants import Role
from pipelinerl.process import REFUSED

WORKER_ROLES: tuple[Role, ...] = ("actor", "preprocessor", "trainer")  # begin again together
BY_SIGNAL = 128  # a status above it is that of a process which handled a signal by ending
SERVICE_ROLES: tuple[Role, ...] = ("reference", "judging", "transport")  # are started again where they were
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS)
WITHIN_S = 600.0  # within which ends are counted


class JobFailedError(Exception):
    """A process that the run needs has ended."""


def is_alive(fate: Fate | None) -> bool:
    return isinstance(fate, Running | Draining)


def failed_worker(fates: Mapping[str, Fate], hung: Collection[str] = ()) -> str | None:
    """Returns whose end the others' ends follow from, or None while none has failed.

    One whose node is lost comes first, then one that hung, then one that was killed, then one by an error.
    """
    failed = [name for name, fate in fates.items() if _has_failed(fate)]
    return min(failed, key=lambda name: _rank_of_cause(fates[name], name in hung), default=None)


def _has_failed(fate: Fate) -> bool:
    return isinstance(fate, Lost) or (isinstance(fate, Ended) and fate.status != 0)


def _rank_of_cause(fate: Fate, hung: bool) -> int:
    if isinstance(fate, Lost):
        return 0
    if hung:
        return 1
    return 2 if is_by_signal(fate.status) else 3


def is_by_signal(status: int) -> bool:
    """Returns whether this exit status is that of a process which a signal ended."""
    return status < 0 or status > BY_SIGNAL


def have_ended_well(fates: Mapping[str, Fate], workers: Iterable[str]) -> bool:
    ends = [fates.get(name) for name in workers]
    return all(isinstance(fate, Ended) and fate.status == 0 for fate in ends)


def in_words(status: int) -> str:
    """Returns how a process has ended, as what follows its name in a sentence.

    A negative status is that of a signal.
    """
    if status >= 0:
        return f"ended with status {status}"
    number = -status
    if number == signal.SIGKILL:
        return f"was killed by signal {number} (out of memory?)"
    how = "crashed by" if number in CRASHES else "was ended by"
    return f"{how} signal {number} ({(signal.strsignal(number) or 'unknown').lower()})"


@dataclass
class Restarts:
    """Counts the ends of one job. `is_spent` says that it is not started again."""

    most: int  # ends within `within_s` that are followed by a restart
    within_s: float = WITHIN_S
    shortest_s: float = 1.0  # before the first restart; doubles with each end within `within_s`
    longest_s: float = 60.0
    is_spent: bool = False
    _ends: list[tuple[float, int]] = field(default_factory=list)  # when, and its weight
    _due: float | None = None

    def ended(self, now: float, status: int | None = None, weight: int = 1) -> None:
        """Records an end: `status` is None where it is not known, `weight` how many ends it counts for.

        One that counts for none was announced, whatever its status is.
        """
        if weight == 0:
            self._due = now + self.shortest_s
            return
        self._ends = [(at, of) for at, of in self._ends if now - at < self.within_s] + [(now, weight)]
        self.is_spent = status == REFUSED or sum(of for _, of in self._ends) > self.most
        wait_s = self.shortest_s * 2 ** (len(self._ends) - 1)
        self._due = None if self.is_spent else now + min(wait_s, self.longest_s)

    @property
    def is_pending(self) -> bool:
        """Whether it has ended and is to be started again."""
        return self._due is not None

    def is_due(self, now: float) -> bool:
        """Returns true once for each end that is followed by a restart, when its time has come."""
        if self._due is None or now < self._due:
            return False
        self._due = None
        return True

    def try_again(self, at: float) -> None:
        """Has it started later, for it could not be started. That is no end."""
        self._due = at

    def give_up(self) -> None:
        """Starts it no more."""
        self.is_spent = True
        self._due = None

    def spent(self, key: str) -> str:
        """Returns the words for a budget that is spent. `key` is that of the configuration."""
        return f"{key}={self.most} allows no further restart within {self.within_s / 60:g} minutes"
