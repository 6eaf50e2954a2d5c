"""Detects that no server serves newer weights for a long time."""

import logging

log = logging.getLogger(__name__)


class Standstill:
    """Watches the newest version that any server serves. Times are monotonic.

    longest_s: time that servers may need for a newer version.
    """

    def __init__(self, longest_s: float):
        self._longest_s = longest_s
        self._served = -1
        self._since: float | None = None  # time since which a newer version is published but not served
        self._is_logged = False

    def lasts(self, served: int, published: int, now: float) -> bool:
        """Returns True if no server has served a newer version for `longest_s`, though one is published.

        It logs that once. It does not end the run, because the network may be slow.
        """
        if served >= published or served > self._served:
            self._since = None
            self._is_logged = False
        self._served = served
        if served >= published:
            return False
        if self._since is None:
            self._since = now
        lasts = now - self._since > self._longest_s
        if lasts and not self._is_logged:
            self._is_logged = True
            log.warning(
                "version %d is published, and no server has served a newer one than %d for %g s",
                published,
                served,
                self._longest_s,
            )
        return lasts
