"""Which servers a run has, as its launcher says. Pure state, no I/O.

Folds the records of `launcher_events`. Who is a server is what they say, never who answers. A server that
left may come back at the same URL: that is another joining, which inherits nothing from the one before.
"""

from dataclasses import dataclass

from contracts.records import Record, Resumed, ServerJoined, ServerLeft


@dataclass(frozen=True, eq=False)
class Joining:
    """One joining of one server. Two of them are never equal, whatever their names and URLs are."""

    name: str  # of the job
    url: str
    number: int = 0  # as the launcher counts them


@dataclass(frozen=True)
class Leaving:
    joining: Joining
    drains: bool = False  # whether it may still end the requests that it has


class ServerRegistry:
    """latest: the last joining of every name in this launch of the run, whether or not it has left."""

    def __init__(self) -> None:
        self.latest: dict[str, Joining] = {}
        self._present: set[Joining] = set()

    @property
    def present(self) -> list[Joining]:
        """The servers of the run, in the order of their names' first joining."""
        return [joining for joining in self.latest.values() if joining in self._present]

    def observe(self, record: Record) -> list[Leaving]:
        """Takes the next record of the launcher into account. Returns who left."""
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
