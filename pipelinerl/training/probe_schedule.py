"""Decides when servers are probed, and whether training waits for late answers. Pure state, no I/O.

The caller passes times, in seconds.
"""

from collections.abc import Collection

FIRST = 3  # number of first probes in a launch that are always made, and waited for
LARGEST_SHARE = 0.01  # largest share of the time since the first probe that waits for answers may take


class ProbeSchedule:
    """The schedule of probes. every: weight versions between two probes, after a launch's first probes."""

    def __init__(self, every: int):
        self._every = every
        self._probes = 0
        self._known: set[int] = set()  # joinings of servers that have been probed
        self._since: float | None = None  # end of the first probe
        self._spent_s = 0.0  # seconds of the later probes

    def is_due(self, version: int, joinings: Collection[int]) -> bool:
        """Returns whether to probe a version that is live at the servers of these joinings.

        A new server is probed at its first version.
        """
        return self._probes < FIRST or version % self._every == 0 or not self._known.issuperset(joinings)

    def begin(self, joinings: Collection[int]) -> None:
        """Records that a probe of these servers begins."""
        self._probes += 1
        self._known.update(joinings)

    def waits(self, now: float) -> bool:
        """Returns whether training waits for late answers before the weights change."""
        return self._probes <= FIRST or self._spent_s <= LARGEST_SHARE * (now - self._since)

    def end(self, began: float, now: float) -> None:
        """Records how long the probe delayed training."""
        if self._since is None:
            self._since = now
        else:
            self._spent_s += now - began
