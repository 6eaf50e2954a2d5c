"""Watches whether servers come to serve newer weights."""

import logging

log = logging.getLogger(__name__)


class Standstill:
    """Watches the newest version that any server serves. Times are those of the monotonic clock.

    longest_s: how long servers may need for a newer version.
    """

    def __init__(self, longest_s: float):
        self._longest_s = longest_s
        self._served = -1
        self._since: float | None = None  # since when a newer version waits for a server
        self._is_said = False

    def lasts(self, served: int, published: int, now: float) -> bool:
        """Returns whether servers have served nothing newer than `served` for long, though something is.

        That is logged once. It does not end a run by itself: the servers' links may be slow.
        """
        if served >= published or served > self._served:
            self._since = None
            self._is_said = False
        self._served = served
        if served >= published:
            return False
        if self._since is None:
            self._since = now
        lasts = now - self._since > self._longest_s
        if lasts and not self._is_said:
            self._is_said = True
            log.warning(
                "version %d is published, and no server has served a newer one than %d for %g s",
                published,
                served,
                self._longest_s,
            )
        return lasts
