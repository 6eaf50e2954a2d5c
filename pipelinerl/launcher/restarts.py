"""When a service that has ended is started again: later and later, and at last not at all."""

import time

SHORTEST_S = 0.5  # before the first restart; doubles with each that follows soon
LONGEST_S = 30.0
SOON_S = 60.0  # after a restart that lasted longer, the count begins anew
MOST = 8  # ends in a row
REFUSED = 2  # the exit status of a service that would only be refused again


class Restarts:
    """Counts the ends of one service. Pure but for the clock."""

    def __init__(self):
        self.is_spent = False
        self._ends = 0  # in a row
        self._started = time.monotonic()
        self._due: float | None = None  # when it ended, and is not started yet

    def is_due(self, status: int) -> bool:
        """Whether to start it now. Called again and again while it is ended, with its exit status."""
        now = time.monotonic()
        if self._due is None:
            self._ends = 1 if now - self._started > SOON_S else self._ends + 1
            self.is_spent = status == REFUSED or self._ends > MOST
            self._due = now + min(SHORTEST_S * 2 ** (self._ends - 1), LONGEST_S)
        if self.is_spent or now < self._due:
            return False
        self._started = now
        self._due = None
        return True
