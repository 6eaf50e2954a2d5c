"""A worker's heartbeat, which continues while the worker works or waits, and stops when it hangs.

The actor, the preprocessor and each trainer rank touch the file `RUN_DIR/heartbeats/NAME`. The launcher
(`launcher/supervising/worker_policy.py`) ends a worker that is silent for `world.heartbeat_timeout_s`. Before
that, the worker's stacks are written to its log.
"""

import asyncio
import contextlib
import faulthandler
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import asynccontextmanager
from pathlib import Path

EVERY_S = 1.0  # shortest time between two written beats, and time between two beats in a wait


class Heartbeat:
    """silence_s: time without a beat after which the stacks are written to stderr. clock: in seconds."""

    def __init__(
        self, run_dir: Path, name: str, silence_s: float, clock: Callable[[], float] = time.monotonic
    ):
        self._path = beat_path(run_dir, name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._silence_s = silence_s
        self._clock = clock
        self._thread = threading.get_ident()
        self._next = 0.0
        self._beaten_at = 0.0
        self.beat()

    def beat(self) -> None:
        """Must be called in the worker's main loop, and in every wait. Ignored in other threads."""
        now = self._clock()
        if now < self._next or threading.get_ident() != self._thread:
            return
        self._next = now + EVERY_S
        self._beaten_at = now
        self._write()

    def of_wait(self, longest_s: float) -> Callable[[], None]:
        """Returns a function that another thread calls while the worker waits in a call with a timeout.

        longest_s: time since the last beat of the worker, after which the function does nothing.
        """

        def beat() -> None:
            if self._clock() - self._beaten_at < longest_s:
                self._write()

        return beat

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # costs one beat; an existing file needs no disk space
            self._path.touch()
        faulthandler.dump_traceback_later(self._silence_s)

    def wait_for(self, futures: Sequence[Future]) -> None:
        while not wait(futures, EVERY_S, FIRST_COMPLETED).done:
            self.beat()

    @asynccontextmanager
    async def of_loop(self) -> AsyncIterator[None]:
        """Beats while the block runs, unless the event loop is blocked."""
        task = asyncio.create_task(self._repeat())
        try:
            yield
        finally:
            task.cancel()

    async def _repeat(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(EVERY_S)


def beat_path(run_dir: Path, name: str) -> Path:
    """Returns the file that the worker of this name touches."""
    return run_dir / "heartbeats" / name
