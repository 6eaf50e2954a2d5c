"""Distributes requests and spans over tracks, on which they nest but do not overlap otherwise. Pure.

Times are in unix seconds.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

EPSILON_S = 1e-5  # by which a span may exceed its parent, whose end is measured by another clock call


class Timed(Protocol):
    """A period of work on a server."""

    server: str
    began: float
    ended: float


Request = TypeVar("Request", bound=Timed)


class Slice(NamedTuple):
    """A named period on a track. `facts`: its details for the viewer."""

    name: str
    began: float
    ended: float
    facts: dict[str, object] = {}


class Track(NamedTuple):
    """Slices that nest and do not overlap, ordered by their beginnings. `process`: the track's owner."""

    process: str
    name: str
    slices: Sequence[Slice]


def rows(requests: Iterable[Request]) -> list[list[Request]]:
    """Returns the requests in rows of one server each. A request goes to the first row that is free."""
    found: list[list[Request]] = []
    ordered = sorted(requests, key=lambda request: (request.server, request.began))
    for _, of_server in groupby(ordered, key=lambda request: request.server):
        free: list[tuple[float, int]] = []  # end of the row's last request, row
        for request in of_server:
            if free and free[0][0] <= request.began:
                _, row = heappop(free)
            else:
                row = len(found)
                found.append([])
            found[row].append(request)
            heappush(free, (request.ended, row))
    return found


def nested(process: str, slices: Iterable[Slice]) -> list[Track]:
    """Returns tracks of one process. A slice is within an earlier one, after it, or on another track."""
    tracks: list[_Nesting] = []
    for slice_ in sorted(slices, key=lambda slice_: (slice_.began, -slice_.ended)):
        track = next((track for track in tracks if track.has_room_for(slice_)), None)
        if track is None:
            track = _Nesting()
            tracks.append(track)
        track.add(slice_)
    return [
        Track(process, f"{process} {i}" if i else process, track.slices) for i, track in enumerate(tracks)
    ]


class _Nesting:
    """One track while it is filled, in the order of beginnings."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self._around: list[float] = []  # ends of the slices that are still open
        self._ended = 0.0  # the latest end of the others

    def has_room_for(self, slice_: Slice) -> bool:
        while self._around and self._around[-1] <= slice_.began + EPSILON_S:
            self._ended = self._around.pop()
        return not self._around or slice_.ended <= self._around[-1] + EPSILON_S

    def add(self, slice_: Slice) -> None:
        began = max(slice_.began, self._ended)
        ended = max(began, min([slice_.ended, *self._around[-1:]]))
        self.slices.append(slice_._replace(began=began, ended=ended))
        self._around.append(ended)
