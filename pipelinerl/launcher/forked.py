"""Runs work in a forked process, so that what it imports is gone when it is done.

The launcher lives as long as its run. It checks the run with torch, the trainer's library and the domain, and
needs none of them afterwards.
"""

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

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
    reading, writing = os.pipe()
    print(end="", flush=True)  # what is not written yet would be written twice
    child = os.fork()
    if child == 0:
        os.close(reading)
        os._exit(_work(work, writing))
    try:
        os.close(writing)
        with open(reading, "rb") as answers:
            answer = answers.read()
    except BaseException:  # an interruption
        os.kill(child, signal.SIGTERM)
        raise
    finally:
        _, ended = os.waitpid(child, 0)
    return _result(answer, os.waitstatus_to_exitcode(ended))


def _work(work: Callable[[], object], writing: int) -> int:
    """Sends the outcome; returns the exit status of the forked process."""
    interruptions.interrupt_once()
    die_with_parent()
    try:
        outcome = _outcome(work)
        print(end="", flush=True)
        with open(writing, "wb") as answer:
            answer.write(pickle.dumps(outcome))
    except KeyboardInterrupt:
        return interruptions.STATUS
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except ValidationError as error:
        return PlanError(one_line(error))
    except (PlanError, OSError) as error:
        return error


def _result(answer: bytes, status: int) -> object:
    if status == interruptions.STATUS:
        raise KeyboardInterrupt
    if status:
        sys.exit(status if status > 0 else f"launch.py: its checks were ended by signal {-status}")
    outcome = pickle.loads(answer)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
