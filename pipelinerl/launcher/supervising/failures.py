"""Failures of jobs: which job failed first, how it ended, and when it is restarted.

A job that ends often is restarted after longer and longer waits, and finally not at all. Pure logic: the
caller passes clock and job states.
"""

import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pipelinerl.launcher.executors.base import Draining, Ended, JobState, Lost, Running
from pipelinerl.launcher.resource_requests import Role
from pipelinerl.process import REFUSED

WORKER_ROLES: tuple[Role, ...] = ("actor", "preprocessor", "trainer")  # restart together
SERVICE_ROLES: tuple[Role, ...] = ("reference", "judging", "transport")  # restart alone, in their placements
BY_SIGNAL = 128  # plus a signal's number: the exit status of a process that handled the signal by ending
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS)
WITHIN_S = 600.0  # time window in which ends are counted


class JobFailedError(Exception):
    """A job that the run needs has failed."""


def is_alive(state: JobState | None) -> bool:
    return isinstance(state, Running | Draining)


def failed_worker(states: Mapping[str, JobState], hung: Collection[str] = ()) -> str | None:
    """Returns the job whose failure most likely caused the others, or None if none has failed.

    Order: a lost node, a job that hung, a job that a signal ended, an error.
    """
    ranks = {name: _rank_of_cause(state, name in hung) for name, state in states.items()}
    failed = [name for name, rank in ranks.items() if rank is not None]
    return min(failed, key=ranks.__getitem__, default=None)


def _rank_of_cause(state: JobState, hung: bool) -> int | None:
    if isinstance(state, Lost):
        return 0
    if not isinstance(state, Ended) or state.status == 0:
        return None
    if hung:
        return 1
    return 2 if is_by_signal(state.status) else 3


def is_by_signal(status: int) -> bool:
    return status < 0 or status > BY_SIGNAL


def have_succeeded(states: Mapping[str, JobState], names: Iterable[str]) -> bool:
    ends = [states.get(name) for name in names]
    return all(isinstance(state, Ended) and state.status == 0 for state in ends)


def in_words(status: int) -> str:
    """Returns how a process ended, as a phrase that follows its name."""
    if status >= 0:
        return f"ended with status {status}"
    number = -status
    if number == signal.SIGKILL:
        return f"was killed by signal {number} (out of memory?)"
    how = "crashed by" if number in CRASHES else "was ended by"
    return f"{how} signal {number} ({(signal.strsignal(number) or 'unknown').lower()})"


@dataclass
class Restarts:
    """The restart budget of one job. If `is_spent`, the job is not restarted again."""

    limit: int  # ends within `within_s` that a restart may follow
    within_s: float = WITHIN_S
    shortest_s: float = 1.0  # wait before the first restart; doubles with each end within `within_s`
    longest_s: float = 60.0
    is_spent: bool = False
    _ends: list[tuple[float, int]] = field(default_factory=list)  # time and weight
    _due: float | None = None

    def record_end(self, now: float, status: int | None = None, weight: int = 1) -> None:
        """Schedules the next restart, unless the budget is spent.

        status: exit status; None if it is unknown. weight: the number of ends that this one counts for; 0 for
        an expected end.
        """
        if weight == 0:
            self._due = now + self.shortest_s
            return
        self._ends = [(at, of) for at, of in self._ends if now - at < self.within_s] + [(now, weight)]
        self.is_spent = status == REFUSED or sum(of for _, of in self._ends) > self.limit
        wait_s = self.shortest_s * 2 ** (len(self._ends) - 1)
        self._due = None if self.is_spent else now + min(wait_s, self.longest_s)

    @property
    def is_pending(self) -> bool:
        """Whether a restart is scheduled."""
        return self._due is not None

    def is_due(self, now: float) -> bool:
        """Returns True once for each scheduled restart, when its time has come."""
        if self._due is None or now < self._due:
            return False
        self._due = None
        return True

    def postpone(self, at: float) -> None:
        """Schedules the restart again, because the job could not be started."""
        self._due = at

    def stop(self) -> None:
        self.is_spent = True
        self._due = None

    def spent_message(self, key: str) -> str:
        """Returns a message about the spent budget. key: the configuration key that sets it."""
        return f"{key}={self.limit} allows no further restart within {self.within_s / 60:g} minutes"
