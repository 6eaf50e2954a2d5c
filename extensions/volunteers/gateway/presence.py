"""Which volunteers are there, and with which weights. Pure logic, with a given clock."""

from collections import Counter
from collections.abc import Callable, Collection

ACTIVE_S = 15.0  # after its last message a volunteer without a task counts as away


class Presence:
    """The volunteers that were heard of. clock: returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._version: dict[str, int] = {}
        self._asking: Counter[str] = Counter()  # open requests for a task

    def seen(self, volunteer: str, version: int | None = None) -> None:
        self._seen[volunteer] = self._clock()
        if version is not None:
            self._version[volunteer] = version

    def begin_asking(self, volunteer: str, version: int) -> None:
        """version: with which it samples."""
        self.seen(volunteer, version)
        self._asking[volunteer] += 1

    def end_asking(self, volunteer: str, is_there: bool) -> None:
        """is_there: False if its connection broke."""
        self._asking[volunteer] -= 1
        if not self._asking[volunteer]:
            del self._asking[volunteer]
        if is_there:
            self.seen(volunteer)
        else:
            self.gone(volunteer)

    def gone(self, volunteer: str) -> None:
        """Forgets a volunteer that was put out."""
        self._seen.pop(volunteer, None)

    def active(self, with_task: Collection[str] = ()) -> set[str]:
        """Returns who asks, has a task, or was heard of a moment ago."""
        now = self._clock()
        recent = {volunteer for volunteer, at in self._seen.items() if now - at <= ACTIVE_S}
        return recent | {*self._asking} | {*with_task}

    def versions(self, volunteers: Collection[str]) -> dict[str, int]:
        """Returns the version with which each of these last asked."""
        return {each: self._version[each] for each in volunteers if each in self._version}

    def oldest(self, newest: int) -> int:
        """Returns the oldest version with which an active volunteer last asked, at most `newest`."""
        versions = [self._version.get(volunteer, newest) for volunteer in self.active()]
        return min([newest, *versions])
