"""Waits while the storage of a stream is full, so that the run continues once space is freed."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from contracts.support.files import is_disk_full
from pipelinerl.streams.base import StreamFullError

RETRY_S = 1.0

log = logging.getLogger(__name__)
Result = TypeVar("Result")


def retry_while_full(
    write: Callable[[], Result], stream: str, place: str, on_wait: Callable[[], object]
) -> Result:
    """Returns the result of `write`, which is retried every second while the storage is full.

    place: the storage, for the log. If `write` raises, it must leave no partial data.
    """
    waited = False
    while True:
        try:
            result = write()
        except (OSError, StreamFullError) as error:
            if not (isinstance(error, StreamFullError) or is_disk_full(error)):
                raise
            if not waited:
                log.warning("%s is full: appending to %s waits for room (%s)", place, stream, error)
            waited = True
            on_wait()
            time.sleep(RETRY_S)
            continue
        if waited:
            log.warning("%s has room again: appending to %s goes on", place, stream)
        return result
