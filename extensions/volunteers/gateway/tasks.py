"""Open tasks and their leases, and how reliably each volunteer delivers. Pure logic, with a given clock."""

import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from extensions.volunteers.gateway.queue import Wanted

GRANTED = 4096  # tasks whose sizes are remembered
REMEMBERED = 50  # tasks of a volunteer
UNDELIVERED = 5  # more than this many of them, and more than a tenth, pause it
SHARE = 0.1
FIRST_PAUSE_S = 600.0
LONGEST_PAUSE_S = 86400.0


@dataclass(eq=False)
class OpenTask:
    """A task that a volunteer has.

    members: all of it, those included that nobody waits for any more. uploaded: once an upload of it is
    audited. is_over: once its completions were queued again.
    """

    name: str
    volunteer: str
    run: str
    version: int
    members: list[Wanted]
    expires_at: float
    uploaded: bool = False
    is_over: bool = False


@dataclass
class Conduct:
    """What a volunteer did with its last tasks: True for one that it did not deliver."""

    undelivered: deque[bool] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    paused_until: float = 0.0
    pause_s: float = FIRST_PAUSE_S


class Tasks:
    """The open tasks. clock: returns monotonic seconds. lease_s: time that a volunteer has for a task."""

    def __init__(self, lease_s: float, clock: Callable[[], float]):
        self.lease_s = lease_s
        self._clock = clock
        self._open: dict[str, OpenTask] = {}
        self._conduct: dict[str, Conduct] = {}
        self._sizes: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def grant(self, volunteer: str, run: str, version: int, members: list[Wanted]) -> OpenTask:
        """Opens a task."""
        name = secrets.token_hex(16)
        task = OpenTask(name, volunteer, run, version, members, self._clock() + self.lease_s)
        self._open[name] = task
        self._sizes[name] = len(members), members[0].sampling.max_tokens if members else 0
        if len(self._sizes) > GRANTED:
            self._sizes.popitem(last=False)
        return task

    def size(self, name: str) -> tuple[int, int] | None:
        """Returns the number of completions of a task and their `max_tokens`, also of one that has ended."""
        return self._sizes.get(name)

    def remaining_s(self, task: OpenTask) -> float:
        return task.expires_at - self._clock()

    def find(self, name: str, volunteer: str) -> OpenTask | None:
        """Returns an open task of this volunteer, or None."""
        task = self._open.get(name)
        return task if task and task.volunteer == volunteer else None

    def of(self, volunteer: str) -> list[OpenTask]:
        return [task for task in self._open.values() if task.volunteer == volunteer]

    def every(self) -> list[OpenTask]:
        return [*self._open.values()]

    def drop(self, task: OpenTask) -> None:
        """Ends a task without a consequence for its volunteer."""
        self._open.pop(task.name, None)

    @property
    def volunteers(self) -> set[str]:
        """The volunteers that have a task."""
        return {task.volunteer for task in self._open.values()}

    @property
    def completions(self) -> int:
        """The number of completions in open tasks that are waited for."""
        return sum(wanted.is_open for task in self._open.values() for wanted in task.members)

    def close(self, task: OpenTask) -> None:
        """Ends a task that was delivered, whatever its audit says."""
        self._open.pop(task.name, None)
        conduct = self._of(task.volunteer)
        conduct.undelivered.append(False)
        if len(conduct.undelivered) == REMEMBERED and not any(conduct.undelivered):
            conduct.pause_s = FIRST_PAUSE_S

    def give_back(self, task: OpenTask) -> float:
        """Ends a task that was not delivered. Returns for how many seconds its volunteer is paused now."""
        self._open.pop(task.name, None)
        conduct = self._of(task.volunteer)
        conduct.undelivered.append(True)
        count = sum(conduct.undelivered)
        if count > UNDELIVERED and count > SHARE * len(conduct.undelivered):
            conduct.undelivered.clear()
            conduct.paused_until = self._clock() + conduct.pause_s
            conduct.pause_s = min(2 * conduct.pause_s, LONGEST_PAUSE_S)
        return self.paused_s(task.volunteer)

    def has_expired(self, task: OpenTask) -> bool:
        """Returns True if the task's time is over, and it is not being audited."""
        return task.expires_at <= self._clock() and not task.uploaded

    def paused_s(self, volunteer: str) -> float:
        """Returns for how many seconds the volunteer gets no task."""
        conduct = self._conduct.get(volunteer)
        return max(0.0, conduct.paused_until - self._clock()) if conduct else 0.0

    def _of(self, volunteer: str) -> Conduct:
        return self._conduct.setdefault(volunteer, Conduct())
