"""Runs work in a forked process, so that what it imports is gone when it is done.

The launcher lives as long as its run. It checks the run with the trainer, the engine and the domain that the
user names. Jobs that are forked later must not have their modules. What a part starts ends with the process.
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
from pipelinerl.errors.part_faults import in_words, place_of, raised_by_users
from pipelinerl.launcher import interruptions
from pipelinerl.launcher.executors.guard import become_subreaper, kill_descendants
from pipelinerl.streams import StreamError

_exit = os._exit  # which the trial of parts replaces
Result = TypeVar("Result")
REFUSALS = (PlanError, StreamError, TokenError, OSError)  # each a message for the user
BY_SIGNAL = 128  # what is added to the number of the signal that ended a process


class EndedError(Exception):
    """The forked process has ended before its work. The message says how, as what follows "was".

    by: the number of the signal that ended it, if one did.
    """

    def __init__(self, how: str, by: int | None = None):
        super().__init__(how)
        self.by = by


def in_forked(work: Callable[[], Result]) -> Result:
    """Returns what `work` returns in a forked process.

    Raises the REFUSALS that `work` does, and PlanError in the place of ValidationError. Any other
    exception is printed, and ends this process too. Outside of Linux, where a fork is not safe, this process
    does the work.
    """
    try:
        return result_of_forked(work)
    except EndedError as error:
        sys.exit(f"launch.py: its checks were {error}; a part that the configuration names may have done it")


def result_of_forked(work: Callable[[], Result]) -> Result:
    """The same, but raises EndedError if the process ends before its work.

    Whatever processes the work has started, and left, end with it.
    """
    if sys.platform != "linux":
        return work()
    print(end="", flush=True)  # what is not written yet would be written twice
    with open(os.memfd_create("outcome"), "w+b") as outcome:
        status = _ended(_fork(lambda unblocked: _keep(work, outcome, unblocked)))
        outcome.seek(0)
        return _result(outcome, status)


def _ended(child: int) -> int:
    """Waits for a forked process, and has an interruption end it. Returns its exit status."""
    try:
        _, ended = os.waitpid(child, 0)
    except BaseException:  # an interruption
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise
    status = os.waitstatus_to_exitcode(ended)
    return status if status >= 0 else BY_SIGNAL - status


def _fork(main: Callable[[set[signal.Signals]], int]) -> int:
    """Returns the forked process, which ends by itself. An interruption waits until it can be told apart."""
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, interruptions.SIGNALS)
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


def _keep(work: Callable[[], object], outcome: BinaryIO, unblocked: set[signal.Signals]) -> int:
    """Has a process of its own do the work, and ends what that leaves behind. Returns its exit status."""
    try:
        interruptions.interrupt_once()
        become_subreaper()
        die_with_parent()
        child = _fork(lambda _: _work(work, outcome, unblocked))
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        return _ended(child)
    except KeyboardInterrupt:
        return interruptions.STATUS
    finally:
        _end_what_is_left()


def _end_what_is_left() -> None:
    kill_descendants()
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _work(work: Callable[[], object], outcome: BinaryIO, unblocked: set[signal.Signals]) -> int:
    """Writes the outcome; returns the exit status of the forked process."""
    try:
        interruptions.interrupt_once()
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        die_with_parent()
        outcome.write(_pickled(_outcome(work)))
    except KeyboardInterrupt:
        return interruptions.STATUS
    except BaseException:
        traceback.print_exc()
        outcome.write(pickle.dumps(SystemExit(1)))
    outcome.flush()
    print(end="", flush=True)
    return 0


def _pickled(outcome: object) -> bytes:
    """Raises an error that is the outcome if the other process could not read it."""
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
        if place := place_of(end):
            return PartError(f"{place}: expected a part that does not end the process, but {in_words(end)}")
        print(end.code, file=sys.stderr, flush=True)
        return SystemExit(1)


def _result(written: BinaryIO, status: int) -> object:
    if status == interruptions.STATUS:
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
