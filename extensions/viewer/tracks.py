"""Assigns requests and spans to tracks on which they do not overlap or are nested. Times are unix seconds."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

EPSILON_S = 1e-5  # tolerance by which a span may exceed the enclosing one, due to separate clock calls


class Timed(Protocol):
    """A request on a server."""

    server: str
    began: float
    ended: float


Request = TypeVar("Request", bound=Timed)


class Slice(NamedTuple):
    """A named interval on a track. facts: details to display."""

    name: str
    began: float
    ended: float
    facts: dict[str, object] = {}


class Track(NamedTuple):
    """Slices that are disjoint or nested, ordered by their begin."""

    process: str
    name: str
    slices: Sequence[Slice]


def rows(requests: Iterable[Request]) -> list[list[Request]]:
    """Assigns the requests of each server to rows on which they do not overlap."""
    found: list[list[Request]] = []
    ordered = sorted(requests, key=lambda request: (request.server, request.began))
    for _, of_server in groupby(ordered, key=lambda request: request.server):
        free: list[tuple[float, int]] = []  # heap of (end of the last request, row)
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
    """Assigns the slices of one process to as many tracks as are needed to nest them."""
    tracks: list[_Nesting] = []
    for slice_ in sorted(slices, key=lambda slice_: (slice_.began, -slice_.ended)):
        track = next((track for track in tracks if track.fits(slice_)), None)
        if track is None:
            track = _Nesting()
            tracks.append(track)
        track.add(slice_)
    return [
        Track(process, f"{process} {i}" if i else process, track.slices) for i, track in enumerate(tracks)
    ]


class _Nesting:
    """A track under construction. Slices must be added in the order of their begin."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self._around: list[float] = []  # ends of the enclosing slices, innermost last
        self._ended = 0.0  # end of the last slice that has ended

    def fits(self, slice_: Slice) -> bool:
        while self._around and self._around[-1] <= slice_.began + EPSILON_S:
            self._ended = self._around.pop()
        return not self._around or slice_.ended <= self._around[-1] + EPSILON_S

    def add(self, slice_: Slice) -> None:
        began = max(slice_.began, self._ended)
        ended = max(began, min([slice_.ended, *self._around[-1:]]))
        self.slices.append(slice_._replace(began=began, ended=ended))
        self._around.append(ended)
