"""The queue for request slots, which bound the rollouts with requests on the servers. Pure state, no I/O.

It decides which rollout starts or resumes when a slot is released. New rollouts of started groups come first,
then rollouts between two segments, then any new group.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

from pipelinerl.rollouts.runner import RolloutSpec


class SlotQueue:
    """The rollouts that wait for a slot.

    on_slot_freed: called when a rollout releases its slot.
    away: the number of rollouts that released their slots, to wait for a judgement or for a program, less
        the slots that these use meanwhile.
    """

    def __init__(self, on_slot_freed: Callable[[], None]):
        self._on_slot_freed = on_slot_freed
        self._new: deque[RolloutSpec] = deque()
        self._between_segments: deque[asyncio.Future[None]] = deque()
        self.away = 0

    def put(self, specs: Iterable[RolloutSpec]) -> None:
        self._new.extend(specs)

    async def wait_for_slot(self) -> None:
        """Waits for a slot, behind the rollouts that wait already. A caller that has a slot releases it."""
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
        """Releases the caller's slot for the block, after which the caller has none.

        A rollout that continues then awaits `wait_for_slot`.
        """
        self.away += 1
        self._on_slot_freed()
        try:
            yield
        finally:
            self.away -= 1

    @asynccontextmanager
    async def slot_while_away(self) -> AsyncIterator[None]:
        """Waits for a slot, which a rollout that left its own uses in the block. It may use several."""
        self.away -= 1
        try:
            await self.wait_for_slot()
            yield
        finally:
            self.away += 1
            self._on_slot_freed()

    @property
    def between_segments(self) -> int:
        """The number of started rollouts that wait for a slot to resume."""
        return len(self._between_segments)

    def pop_new(self) -> RolloutSpec | None:
        return self._new.popleft() if self._new else None

    def resume_one(self) -> bool:
        """Gives a slot to the rollout that has waited longest to resume. Returns False if none waits."""
        while self._between_segments:
            slot = self._between_segments.popleft()
            if not slot.done():  # otherwise its wait was cancelled
                slot.set_result(None)
                return True
        return False
