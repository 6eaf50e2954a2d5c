"""The line before the servers: who begins or goes on when a rollout gives up its place. No I/O.

A rollout that its segment's budget cuts short goes back behind the members that wait to begin, and before
any new group.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from pipelinerl.rollouts.runner import Member


class WaitingLine:
    def __init__(self, on_place_free: Callable[[], None]):
        self._on_place_free = on_place_free
        self._beginners: deque[Member] = deque()
        self._between_segments: deque[asyncio.Future[None]] = deque()

    def join(self, members: Iterable[Member]) -> None:
        self._beginners.extend(members)

    async def wait_between_segments(self) -> None:
        """Give up one's place, and return when there is one again."""
        place = asyncio.get_running_loop().create_future()
        self._between_segments.append(place)
        self._on_place_free()
        try:
            await place
        finally:
            if place in self._between_segments:  # called off meanwhile
                self._between_segments.remove(place)

    @property
    def between_segments(self) -> int:
        return len(self._between_segments)

    def beginner(self) -> Member | None:
        return self._beginners.popleft() if self._beginners else None

    def let_one_go_on(self) -> bool:
        while self._between_segments:
            place = self._between_segments.popleft()
            if not place.done():  # called off, and not yet gone
                place.set_result(None)
                return True
        return False
