"""The server instances of a run, according to its launcher. Pure state, no I/O.

They are computed from the records of `launcher_events`, never from which addresses answer. A joining is the
record of one server instance. A server that is restarted at the same URL is a new instance without state.
"""

from dataclasses import dataclass

from contracts.records import Record, Resumed, ServerJoined, ServerLeft


@dataclass(frozen=True, eq=False)
class Joining:
    """A server instance. Two instances are never equal, even with the same name and URL."""

    name: str  # name of the server's job
    url: str
    number: int = 0  # number of the instance, counted by the launcher


@dataclass(frozen=True)
class Leaving:
    joining: Joining
    drains: bool = False  # True if it finishes its requests


class ServerRegistry:
    """The server instances of a run.

    latest: the last instance of every name since the last start or resumption, also if it has left.
    """

    def __init__(self) -> None:
        self.latest: dict[str, Joining] = {}
        self._present: set[Joining] = set()

    @property
    def present(self) -> list[Joining]:
        """The present server instances, in the order in which their names first joined."""
        return [joining for joining in self.latest.values() if joining in self._present]

    def observe(self, record: Record) -> list[Leaving]:
        """Updates the state with the launcher's next record. Returns the server instances that left."""
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
