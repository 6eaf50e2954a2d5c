"""Ends a server whose engine process has ended, because the launcher can only restart the server."""

import logging
import signal

log = logging.getLogger(__name__)


def end_server(why: str) -> None:
    """Logs `why`, one line, and ends this process by SIGTERM, so that its exit status is not 0.

    Requests in flight get a response first.
    """
    log.error("%s, and so this server ends; start it again", why)
    signal.raise_signal(signal.SIGTERM)
