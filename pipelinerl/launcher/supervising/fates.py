"""What the fates of its jobs mean for a run: whether it is over, and whether it has failed. Pure."""

import signal
from collections.abc import Collection, Iterable, Mapping

from pipelinerl.launcher.executors.base import Draining, Ended, Fate, Lost, Running
from pipelinerl.launcher.wants import Role

WORKER_ROLES: tuple[Role, ...] = ("actor", "preprocessor", "trainer")  # begin again together
BY_SIGNAL = 128  # a status above it is that of a process which handled a signal by ending
SERVICE_ROLES: tuple[Role, ...] = ("reference", "judging", "transport")  # are started again where they were
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS)


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
