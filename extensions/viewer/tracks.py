"""Deals what took time to tracks, on which nothing overlaps but what lies within another. Pure.

Times are in unix seconds.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

EPSILON_S = 1e-5  # that a span may exceed the one around it, whose end another clock call measured


class Timed(Protocol):
    """Something that a server did."""

    server: str
    began: float
    ended: float


Request = TypeVar("Request", bound=Timed)


class Slice(NamedTuple):
    """A named time on a track. facts: what a viewer shows of it."""

    name: str
    began: float
    ended: float
    facts: dict[str, object] = {}


class Track(NamedTuple):
    """Slices that nest and do not overlap, by their beginnings. process: whose track it is."""

    process: str
    name: str
    slices: Sequence[Slice]


def rows(requests: Iterable[Request]) -> list[list[Request]]:
    """Returns the requests in rows, each the first one that is free. Servers share no row."""
    found: list[list[Request]] = []
    ordered = sorted(requests, key=lambda request: (request.server, request.began))
    for _, of_server in groupby(ordered, key=lambda request: request.server):
        free: list[tuple[float, int]] = []  # when its last request ended, and the row
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
    """Returns tracks of one process. A slice lies within an earlier one, after it, or on another track."""
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
    """One track while it is filled, in the order of the beginnings."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self._around: list[float] = []  # ends of the slices that have not ended
        self._ended = 0.0  # the last end of the others

    def has_room_for(self, slice_: Slice) -> bool:
        while self._around and self._around[-1] <= slice_.began + EPSILON_S:
            self._ended = self._around.pop()
        return not self._around or slice_.ended <= self._around[-1] + EPSILON_S

    def add(self, slice_: Slice) -> None:
        began = max(slice_.began, self._ended)
        ended = max(began, min([slice_.ended, *self._around[-1:]]))
        self.slices.append(slice_._replace(began=began, ended=ended))
        self._around.append(ended)
