"""A worker's signs of life: it beats while it works and while it waits, and not while it hangs.

The actor, the preprocessor and each trainer rank touch a file of their own, `RUN_DIR/heartbeats/NAME`. The
launcher sees that the file changes (`launcher/liveness.py`), and ends a worker that is silent for
`world.heartbeat_timeout_s`. Before that, the worker's stacks are written to its log.
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

EVERY_S = 1.0  # the shortest time between two beats that are written, and between two in a wait


class Heartbeat:
    """silence_s: after which the stacks of the process are written to stderr, which is its log."""

    def __init__(self, run_dir: Path, name: str, silence_s: float):
        self._path = beat_path(run_dir, name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._silence_s = silence_s
        self._thread = threading.get_ident()
        self._next = 0.0
        self._beaten_at = 0.0
        self.beat()

    def beat(self) -> None:
        """Says that the worker is alive. Must be called from its main loop and from every wait in it.

        A call from another thread than the one that made this object says nothing of the worker.
        """
        now = time.monotonic()
        if now < self._next or threading.get_ident() != self._thread:
            return
        self._next = now + EVERY_S
        self._beaten_at = now
        self._write()

    def of_wait(self, longest_s: float) -> Callable[[], None]:
        """Returns what another thread calls while the worker is in waits that end by themselves.

        longest_s: of one of them. A worker that does not come back for longer has fallen silent.
        """

        def beat() -> None:
            if time.monotonic() - self._beaten_at < longest_s:
                self._write()

        return beat

    def _write(self) -> None:
        _touch(self._path)
        faulthandler.dump_traceback_later(self._silence_s)

    def wait_for(self, futures: Sequence[Future]) -> None:
        """Beats until one of the futures is done."""
        while not wait(futures, EVERY_S, FIRST_COMPLETED).done:
            self.beat()

    @asynccontextmanager
    async def of_loop(self) -> AsyncIterator[None]:
        """Beats while the block runs and the event loop turns."""
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


def _touch(path: Path) -> None:
    """Sets the file's time. A file that is there needs no room on the disk for it.

    A disk that fails for once costs one beat.
    """
    with contextlib.suppress(OSError):
        path.touch()
