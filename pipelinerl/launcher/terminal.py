"""The launcher and its terminal: messages, the signals that end the launcher, and output that nobody reads.

Ctrl-C, SIGTERM and SIGHUP (a closed terminal) end the launcher. It continues if its output's pipe or terminal
is closed. `launch.py` imports this module before any other, so it imports little.
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
INTERRUPTED = 130  # exit status of an interrupted launcher, as in a shell
NO_READER = (errno.EPIPE, errno.EIO)  # errors of a write to a closed pipe or terminal


def print_message(line: str) -> None:
    print(f"launch.py: {line}", file=sys.stderr, flush=True)


# --- signals --------------------------------------------------------------------------------------


def exit_on_signal() -> None:
    """Makes a signal end this process at once, without a traceback."""
    _handle(_exit)


def raise_on_signal() -> None:
    _handle(_raise)


def raise_on_first_signal() -> None:
    """Makes the first signal raise KeyboardInterrupt. Later ones are ignored, because the end has begun."""
    _handle(_raise_once)


def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _handle(handler: Callable[..., NoReturn]) -> None:
    """Installs the handler.

    Under nohup, SIGHUP stays ignored, and so does an ignored SIGINT. Without nohup, SIGINT is handled even if
    it is ignored, because a script's shell ignores it in jobs that it starts with `&`.
    """
    has_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    for number in SIGNALS:
        ignored = signal.getsignal(number) == signal.SIG_IGN
        if number == signal.SIGTERM or not (has_nohup and ignored):
            signal.signal(number, handler)


def _exit(number: int, _: object) -> NoReturn:
    _discard_output_to_closed_terminal()
    os.write(2, b"launch.py: interrupted\n")
    os._exit(INTERRUPTED)


def _raise(number: int, _: object) -> NoReturn:
    _discard_output_to_closed_terminal()
    raise KeyboardInterrupt


def _ignore(number: int, frame: object) -> None:
    pass


def _raise_once(number: int, frame: object) -> NoReturn:
    for later in SIGNALS:
        signal.signal(later, _ignore)  # with SIG_IGN, Python would report one that has already arrived
    _raise(number, frame)


# --- output ---------------------------------------------------------------------------------------


def outlast_readers() -> None:
    """Makes this process print any text without an error, also after its pipe or terminal was closed."""
    print_any_text()
    sys.stdout = LastingOutput(sys.stdout) if sys.stdout else None
    sys.stderr = LastingOutput(sys.stderr) if sys.stderr else None


class LastingOutput:
    """A text stream that discards its output once its reader is gone."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._discard_after(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._discard_after(error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def _discard_after(self, error: OSError) -> None:
        if error.errno not in NO_READER:
            raise error
        _discard_output(self._stream.fileno())


def _discard_output_to_closed_terminal() -> None:
    for output in (1, 2):
        try:
            termios.tcgetattr(output)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                _discard_output(output)


def _discard_output(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
