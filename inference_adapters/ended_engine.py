"""Ends a server whose engine has ended, because only the server can be restarted."""

import logging
import signal

log = logging.getLogger(__name__)


def end_server(why: str) -> None:
    """Ends this process by SIGTERM, so that its status is not 0. Requests in flight are answered first.

    `why` is one line for the log.
    """
    log.error("%s, and so this server ends; start it again", why)
    signal.raise_signal(signal.SIGTERM)
