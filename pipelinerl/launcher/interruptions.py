"""How the launcher is asked to end: by Ctrl-C, by SIGTERM, or by SIGHUP, with which a terminal is closed.

It imports the standard library alone, since it is needed before anything else is imported.
"""

import errno
import os
import signal
import termios
from collections.abc import Callable
from typing import NoReturn

from pipelinerl.launcher.outputs import lead_nowhere

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STATUS = 130  # of a launcher that was interrupted, as a shell has it


def end_at_once() -> None:
    """Has a signal end this process without a traceback. For as long as it has started nothing."""
    _handle(_end)


def interrupt() -> None:
    """Has a signal raise KeyboardInterrupt, so that all that was started ends first."""
    _handle(_raise)


def interrupt_once() -> None:
    """Has the first signal raise KeyboardInterrupt, and others do nothing: an end is under way."""
    _handle(_raise_once)


def ignore() -> None:
    """Has these signals do nothing, for an end that must not be interrupted."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _handle(handler: Callable[..., NoReturn]) -> None:
    """Has signals call the handler.

    Under nohup, SIGHUP stays ignored, and Ctrl-C if that is ignored too. Otherwise Ctrl-C ends the launcher,
    although a script's shell lets a job that it starts with & ignore it.
    """
    stays = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    for number in SIGNALS:
        ignored = signal.getsignal(number) == signal.SIG_IGN
        if number == signal.SIGTERM or not (stays and ignored):
            signal.signal(number, handler)


def _end(number: int, _: object) -> NoReturn:
    _leave_closed_terminal()
    os.write(2, b"launch.py: interrupted\n")
    os._exit(STATUS)


def _raise(number: int, _: object) -> NoReturn:
    _leave_closed_terminal()
    raise KeyboardInterrupt


def _raise_once(number: int, frame: object) -> NoReturn:
    ignore()
    _raise(number, frame)


def _leave_closed_terminal() -> None:
    """Has what is printed go nowhere if the terminal is closed, where printing is an error."""
    for output in (1, 2):
        try:
            termios.tcgetattr(output)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                lead_nowhere(output)
