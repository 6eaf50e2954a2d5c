"""The queue for slots, which are places for requests on the servers. Pure state, no I/O.

It decides which rollout starts or resumes when another one frees its slot. Rollouts of started groups that
have not begun come first, then rollouts that their segment's budget has cut short, then any new group.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pipelinerl.rollouts.runner import RolloutSpec


class SlotQueue:
    """The rollouts that wait for a slot. `on_slot_freed` is called when a rollout yields its own.

    away: the number of rollouts that hold no slot because they wait for a judgement.
    """

    def __init__(self, on_slot_freed: Callable[[], None]):
        self._on_slot_freed = on_slot_freed
        self._new: deque[RolloutSpec] = deque()
        self._between_segments: deque[asyncio.Future[None]] = deque()
        self.away = 0

    def put(self, specs: Iterable[RolloutSpec]) -> None:
        """Adds rollouts that have not started."""
        self._new.extend(specs)

    async def yield_slot(self) -> None:
        """Frees the caller's slot, and returns when it has a slot again."""
        slot = asyncio.get_running_loop().create_future()
        self._between_segments.append(slot)
        self._on_slot_freed()
        try:
            await slot
        finally:
            if slot in self._between_segments:  # the wait was cancelled
                self._between_segments.remove(slot)

    @contextmanager
    def leave_slot(self) -> Iterator[None]:
        """Frees the caller's slot while the block runs. The caller has no slot afterwards.

        A rollout that continues asks for a slot with `yield_slot`.
        """
        self.away += 1
        self._on_slot_freed()
        try:
            yield
        finally:
            self.away -= 1

    @property
    def between_segments(self) -> int:
        """The number of started rollouts that wait for a slot."""
        return len(self._between_segments)

    def pop_new(self) -> RolloutSpec | None:
        """Returns the next rollout to start, or None if none is waiting to start."""
        return self._new.popleft() if self._new else None

    def resume_one(self) -> bool:
        """Gives a slot to the rollout that has waited longest between two segments.

        Returns False if none waits.
        """
        while self._between_segments:
            slot = self._between_segments.popleft()
            if not slot.done():  # otherwise its wait was cancelled
                slot.set_result(None)
                return True
        return False
