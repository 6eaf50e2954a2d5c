"""Runs work in a forked process, so that what it imports is gone when it is done.

The launcher lives as long as its run. It checks the run with the trainer, the engine and the domain that the
user names. Jobs that are forked later must not have their modules.
"""

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from contracts.support.die_with_parent import die_with_parent
from contracts.support.messages import one_line
from pipelinerl.errors import PlanError
from pipelinerl.launcher import interruptions

Result = TypeVar("Result")


def in_forked(work: Callable[[], Result]) -> Result:
    """Returns what `work` returns in a forked process.

    Raises PlanError and OSError where `work` does, and PlanError in the place of ValidationError. Any other
    exception is printed, and ends this process too. Outside of Linux, where a fork is not safe, this process
    does the work.
    """
    if sys.platform != "linux":
        return work()
    print(end="", flush=True)  # what is not written yet would be written twice
    with open(os.memfd_create("outcome"), "w+b") as outcome:
        child = _fork(work, outcome)
        try:
            _, ended = os.waitpid(child, 0)
        except BaseException:  # an interruption
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            raise
        outcome.seek(0)
        return _result(outcome, os.waitstatus_to_exitcode(ended))


def _fork(work: Callable[[], object], outcome: BinaryIO) -> int:
    """Returns the forked process, which ends by itself. An interruption waits until it can be told apart."""
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, interruptions.SIGNALS)
    try:
        child = os.fork()
        if child == 0:
            os._exit(_work(work, outcome, unblocked))
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def _work(work: Callable[[], object], outcome: BinaryIO, unblocked: set[signal.Signals]) -> int:
    """Writes the outcome; returns the exit status of the forked process."""
    try:
        interruptions.interrupt_once()
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        die_with_parent()
        outcome.write(_pickled(_outcome(work)))
        outcome.flush()
        print(end="", flush=True)
    except KeyboardInterrupt:
        return interruptions.STATUS
    except SystemExit as end:
        print(end.code, file=sys.stderr, flush=True)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
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
    except (PlanError, OSError) as error:
        return error


def _result(written: BinaryIO, status: int) -> object:
    if status == interruptions.STATUS:
        raise KeyboardInterrupt
    if status:
        sys.exit(status if status > 0 else f"launch.py: its checks were ended by signal {-status}")
    outcome = pickle.load(written)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
