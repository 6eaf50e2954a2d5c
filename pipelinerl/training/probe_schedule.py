"""When the servers are probed, and whether training waits for late answers. Pure state, no I/O.

Times are the caller's, in seconds.
"""

from collections.abc import Collection

FIRST = 3  # probes of a launch that are always made and waited for
LARGEST_SHARE = 0.01  # of the time since the first probe: beyond it, late answers are left out


class ProbeSchedule:
    """every: weight versions between two probes, after the first ones of a launch."""

    def __init__(self, every: int):
        self._every = every
        self._probes = 0
        self._known: set[int] = set()  # joinings of servers that have been probed
        self._since: float | None = None  # when the first probe had ended
        self._spent_s = 0.0  # on the others

    def is_due(self, version: int, joinings: Collection[int]) -> bool:
        """Returns whether a version is to be probed that is live at the servers of these joinings.

        A server that has joined is probed at its first version.
        """
        return self._probes < FIRST or version % self._every == 0 or not self._known.issuperset(joinings)

    def begin(self, joinings: Collection[int]) -> None:
        """Takes into account that a probe of these servers begins."""
        self._probes += 1
        self._known.update(joinings)

    def waits(self, now: float) -> bool:
        """Returns whether training waits for the answers that have not come when the weights change."""
        return self._probes <= FIRST or self._spent_s <= LARGEST_SHARE * (now - self._since)

    def end(self, began: float, now: float) -> None:
        """Takes into account how long the probe has held training up."""
        if self._since is None:
            self._since = now
        else:
            self._spent_s += now - began
