"""An attempt's wait for a judgement, during which it holds no place on a server and its clock is paused."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from pipelinerl.clients.attempt_clock import AttemptClock

LeavePlace = Callable[[], AbstractContextManager[None]]


class Pause:
    """The waits of one attempt, which may wait for several judgements at once.

    leave_place: context in which the attempt's place is free for another attempt.
    """

    def __init__(self, clock: AttemptClock, leave_place: LeavePlace):
        self._clock = clock
        self._leave_place = leave_place
        self._waits = 0
        self._left = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._waits += 1
        if self._waits == 1:
            self._left.enter_context(self._leave_place())
            self._left.enter_context(self._clock.standing_still())
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self._left.close()
