"""The servers of a run, according to its launcher. Pure state, no I/O.

It is computed from the records of `launcher_events`, never from which addresses answer. A server that left
may come back at the same URL: that is a new joining, without state of the earlier one.
"""

from dataclasses import dataclass

from contracts.records import Record, Resumed, ServerJoined, ServerLeft


@dataclass(frozen=True, eq=False)
class Joining:
    """A server's joining of the run. Two joinings are never equal, even with the same name and URL."""

    name: str  # name of the server's job
    url: str
    number: int = 0  # the launcher's count of joinings


@dataclass(frozen=True)
class Leaving:
    joining: Joining
    drains: bool = False  # whether it may still finish the requests that it has


class ServerRegistry:
    """The joinings of a run's servers.

    latest: the last joining of every name in this launch of the run, whether or not it has left.
    """

    def __init__(self) -> None:
        self.latest: dict[str, Joining] = {}
        self._present: set[Joining] = set()

    @property
    def present(self) -> list[Joining]:
        """The servers of the run, in the order of their names' first joining."""
        return [joining for joining in self.latest.values() if joining in self._present]

    def observe(self, record: Record) -> list[Leaving]:
        """Takes the launcher's next record into account. Returns the servers that left."""
        match record:
            case Resumed():
                leavings = [Leaving(joining) for joining in self.present]
                self.latest.clear()
            case ServerJoined(name=name, url=url, number=number):
                leavings = [Leaving(j) for j in self.present if j.name == name or j.url == url]
                joining = Joining(name, url, number)
                self.latest[name] = joining
                self._present.add(joining)
            case ServerLeft(name=name, url=url, why=why):
                drains = why in ("draining", "asked")
                leavings = [Leaving(j, drains) for j in self.present if (j.name, j.url) == (name, url)]
            case _:
                return []
        self._present -= {leaving.joining for leaving in leavings}
        return leavings
