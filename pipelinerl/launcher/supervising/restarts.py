"""When a job that has ended is started again: later and later, and at last not at all.

It is pure: times are given.
"""

from dataclasses import dataclass, field

from pipelinerl.process import REFUSED

WITHIN_S = 600.0  # within which ends are counted
WORKERS = "restarts.workers"
SERVICES = "restarts.services"


@dataclass
class Restarts:
    """Counts the ends of one job. `is_spent` says that it is not started again."""

    most: int  # ends within `within_s` that are followed by a restart
    within_s: float
    shortest_s: float  # before the first restart; doubles with each end within `within_s`
    longest_s: float
    is_spent: bool = False
    _ends: list[tuple[float, int]] = field(default_factory=list)  # when, and its weight
    _due: float | None = None

    def ended(self, now: float, status: int | None = None, weight: int = 1) -> None:
        """Records an end: `status` is None where it is not known, `weight` how many ends it counts for.

        One that counts for none was announced, whatever its status is.
        """
        if weight == 0:
            self._due = now + self.shortest_s
            return
        self._ends = [(at, of) for at, of in self._ends if now - at < self.within_s] + [(now, weight)]
        self.is_spent = status == REFUSED or sum(of for _, of in self._ends) > self.most
        wait_s = self.shortest_s * 2 ** (len(self._ends) - 1)
        self._due = None if self.is_spent else now + min(wait_s, self.longest_s)

    @property
    def is_pending(self) -> bool:
        """Whether it has ended and is to be started again."""
        return self._due is not None

    def is_due(self, now: float) -> bool:
        """Returns true once for each end that is followed by a restart, when its time has come."""
        if self._due is None or now < self._due:
            return False
        self._due = None
        return True

    def try_again(self, at: float) -> None:
        """Has it started later, for it could not be started. That is no end."""
        self._due = at

    def give_up(self) -> None:
        """Starts it no more."""
        self.is_spent = True
        self._due = None


def spent(key: str, most: int) -> str:
    """Returns the words for a budget that is spent. `key` is that of the configuration."""
    return f"{key}={most} allows no further restart within {WITHIN_S / 60:g} minutes"


def of_a_server(most: int) -> Restarts:
    return Restarts(most, WITHIN_S, shortest_s=1, longest_s=60)


def of_workers(most: int) -> Restarts:
    return Restarts(most, WITHIN_S, shortest_s=1, longest_s=60)


def of_a_service(most: int) -> Restarts:
    return Restarts(most, WITHIN_S, shortest_s=0.5, longest_s=30)
