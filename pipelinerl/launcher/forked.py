"""Runs work in a forked process, whose imports, threads and child processes end with it.

The launcher checks a run in one, because the checks import the configured trainer, engine and domain. Jobs
that are forked from the launcher later must not inherit those modules.
"""

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from contracts.support.die_with_parent import die_with_parent
from contracts.support.messages import one_line
from contracts.support.token import TokenError
from pipelinerl.errors import PartError, PlanError
from pipelinerl.errors.part_faults import in_words, location_of, raised_by_users
from pipelinerl.launcher import terminal
from pipelinerl.launcher.executors.guard import become_subreaper, kill_descendants
from pipelinerl.streams import StreamError

_exit = os._exit  # because the trial of components replaces os._exit
Result = TypeVar("Result")
REFUSALS = (PlanError, StreamError, TokenError, OSError)  # errors whose message is for the user
BY_SIGNAL = 128  # plus a signal's number: the exit status of a process that the signal ended


class EndedError(Exception):
    """The forked process ended before its work. by: the signal. The message follows "was" in a sentence."""

    def __init__(self, how: str, by: int | None = None):
        super().__init__(how)
        self.by = by


def in_forked(work: Callable[[], Result]) -> Result:
    """Calls `work` in a forked process, and returns its result. Outside of Linux, calls it in this process.

    Raises the REFUSALS that `work` raises, and PlanError in place of ValidationError. Any other exception is
    printed, and ends this process too.
    """
    try:
        return result_of_forked(work)
    except EndedError as error:
        sys.exit(f"launch.py: its checks were {error}; a part that the configuration names may have done it")


def result_of_forked(work: Callable[[], Result]) -> Result:
    """Does the same as `in_forked`, but raises EndedError if the process ends before its work."""
    if sys.platform != "linux":
        return work()
    print(end="", flush=True)  # the child would write buffered output a second time
    with open(os.memfd_create("outcome"), "w+b") as outcome:
        status = _wait(_fork(lambda unblocked: _supervise(work, outcome, unblocked)))
        outcome.seek(0)
        return _result(outcome, status)


def _wait(child: int) -> int:
    """Waits for a forked process, and returns its exit status. An interruption ends the process."""
    try:
        _, ended = os.waitpid(child, 0)
    except BaseException:  # an interruption
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise
    status = os.waitstatus_to_exitcode(ended)
    return status if status >= 0 else BY_SIGNAL - status


def _fork(main: Callable[[set[signal.Signals]], int]) -> int:
    """Forks a process that exits with the result of `main`, which gets the signal mask to restore."""
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, terminal.SIGNALS)
    try:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = main(unblocked)
            finally:
                _exit(status)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def _supervise(work: Callable[[], object], outcome: BinaryIO, unblocked: set[signal.Signals]) -> int:
    """Does the work in a child process, then kills all remaining descendants. Returns the exit status."""
    try:
        terminal.raise_on_first_signal()
        become_subreaper()
        die_with_parent()
        child = _fork(lambda _: _work(work, outcome, unblocked))
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        return _wait(child)
    except KeyboardInterrupt:
        return terminal.INTERRUPTED
    finally:
        kill_descendants()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _work(work: Callable[[], object], outcome: BinaryIO, unblocked: set[signal.Signals]) -> int:
    try:
        terminal.raise_on_first_signal()
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        die_with_parent()
        outcome.write(_pickled(_outcome(work)))
    except KeyboardInterrupt:
        return terminal.INTERRUPTED
    except BaseException:
        traceback.print_exc()
        outcome.write(pickle.dumps(SystemExit(1)))
    outcome.flush()
    print(end="", flush=True)
    return 0


def _pickled(outcome: object) -> bytes:
    """Raises an outcome that is an exception if it cannot be pickled and unpickled."""
    try:
        pickled = pickle.dumps(outcome)
        pickle.loads(pickled)
    except Exception:
        if isinstance(outcome, Exception):
            raise outcome from None
        raise
    return pickled


def _outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except ValidationError as error:
        return PlanError(one_line(error))
    except REFUSALS as error:
        return error
    except Exception as error:
        if (line := raised_by_users(error)) is None:
            raise
        return PartError(line)
    except SystemExit as end:
        if where := location_of(end):
            return PartError(f"{where}: expected a part that does not end the process, but {in_words(end)}")
        print(end.code, file=sys.stderr, flush=True)
        return SystemExit(1)


def _result(written: BinaryIO, status: int) -> object:
    if status == terminal.INTERRUPTED:
        raise KeyboardInterrupt
    if status > BY_SIGNAL:
        raise EndedError(f"ended by signal {status - BY_SIGNAL}", status - BY_SIGNAL)
    try:
        outcome = pickle.load(written)
    except EOFError:
        raise EndedError(f"ended with status {status}, by os._exit") from None
    if isinstance(outcome, Exception | SystemExit):
        raise outcome
    return outcome
