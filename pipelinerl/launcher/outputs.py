"""Keeps the launcher going where nobody reads its output any more: a closed terminal, or a pipe that ends.

It imports no package but the standard library, since it is needed before anything else is imported.
"""

import errno
import os
import sys
from typing import TextIO

from contracts.support.terminal import print_any_text

GONE = (errno.EPIPE, errno.EIO)


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
        lead_nowhere(self._stream.fileno())


def lead_nowhere(descriptor: int) -> None:
    """Has everything that is written to this descriptor from now on go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def outlast_readers() -> None:
    """Has what this process prints go nowhere, once nobody reads it any more, and be any text until then."""
    print_any_text()
    sys.stdout = LastingOutput(sys.stdout) if sys.stdout else None
    sys.stderr = LastingOutput(sys.stderr) if sys.stderr else None
