"""The queue for request slots, which bound the rollouts with requests on the servers. Pure state, no I/O.

It decides which rollout starts or resumes when a slot is released. New rollouts of started groups come first,
then rollouts between two segments, then any new group.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pipelinerl.rollouts.runner import RolloutSpec


class SlotQueue:
    """The rollouts that wait for a slot.

    on_slot_freed: called when a rollout releases its slot.
    judging: the number of rollouts without a slot that wait for a judgement.
    """

    def __init__(self, on_slot_freed: Callable[[], None]):
        self._on_slot_freed = on_slot_freed
        self._new: deque[RolloutSpec] = deque()
        self._between_segments: deque[asyncio.Future[None]] = deque()
        self.judging = 0

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
        """Releases the caller's slot for a judgement. The caller has no slot after the block.

        A rollout that continues then awaits `wait_for_slot`.
        """
        self.judging += 1
        self._on_slot_freed()
        try:
            yield
        finally:
            self.judging -= 1

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
