"""How the launcher is asked to end: by Ctrl-C, by SIGTERM, or by SIGHUP, with which a terminal is closed.

It goes on if nobody reads its output any more: where a terminal is closed, or a pipe ends. This module
imports little, since it is needed before anything else is imported.
"""

import errno
import os
import signal
import sys
import termios
from collections.abc import Callable
from typing import NoReturn, TextIO

from contracts.support.terminal import print_any_text

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STATUS = 130  # of a launcher that was interrupted, as a shell has it
GONE = (errno.EPIPE, errno.EIO)  # errors of writing what nobody reads


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
                _lead_nowhere(output)


# --- its output -----------------------------------------------------------------------------------


def outlast_readers() -> None:
    """Has what this process prints go nowhere, once nobody reads it any more, and be any text until then."""
    print_any_text()
    sys.stdout = LastingOutput(sys.stdout) if sys.stdout else None
    sys.stderr = LastingOutput(sys.stderr) if sys.stderr else None


class LastingOutput:
    """Writes to a stream of text as long as somebody reads it, and then nowhere."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._leave(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._leave(error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _leave(self, error: OSError) -> None:
        if error.errno not in GONE:
            raise error
        _lead_nowhere(self._stream.fileno())


def _lead_nowhere(descriptor: int) -> None:
    """Has everything that is written to this descriptor from now on go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
