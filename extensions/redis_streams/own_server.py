"""Watches the run's own Redis server, and restarts it if it dies or does not respond.

A separate thread does so without using streams, because the supervisor may be waiting for that server. The
restarted server has the same port, password and data, and the processes of the run reconnect.
"""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contracts.support.messages import one_line
from extensions.redis_streams.server import ASK_TIMEOUT_S, RedisServer
from pipelinerl.launcher.supervising.failures import JobFailedError, Restarts, in_words
from pipelinerl.launcher.terminal import print_message
from pipelinerl.streams.of_run import StreamsServer

POLL_S = 0.1
LONGEST_SILENCE_S = 30.0  # of a running process; less than RECONNECT_TIMEOUT_S of the run's processes
LONGEST_WAIT_S = 5.0  # before a restart, during which the complete run waits


@dataclass
class Silence:
    """Measures for how long a server has not answered.

    A gap between observations, as while the launcher was stopped, counts at most 2 * ASK_TIMEOUT_S.
    """

    began: float
    seconds: float = 0.0

    def observe(self, now: float, answers: bool) -> None:
        """Updates the silence after one attempt."""
        self.seconds = 0.0 if answers else self.seconds + min(now - self.began, 2 * ASK_TIMEOUT_S)
        self.began = now

    @property
    def is_too_long(self) -> bool:
        return self.seconds >= LONGEST_SILENCE_S


class OwnServer(RedisServer, StreamsServer):
    """A Redis server, watched between `__enter__` and `__exit__`. most: restarts within ten minutes."""

    name = "redis"

    def __init__(self, directory: Path, address: str, most: int):
        super().__init__(directory, address)
        self._restarts = Restarts(most, shortest_s=0.5, longest_s=LONGEST_WAIT_S)
        self._untold: queue.SimpleQueue[str] = queue.SimpleQueue()  # reasons of restarts to report
        self._silence = Silence(time.monotonic())
        self._is_back = True  # True if it has answered since its last start
        self._why: str | None = None  # reason for killing it
        self._over = threading.Event()
        self._idle = threading.Event()  # set when the thread will not start the server again
        self._thread = threading.Thread(target=self._tend, daemon=True, name=self.name)

    def __enter__(self) -> "OwnServer":
        super().__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        try:
            if self._thread.ident is not None:  # the thread was started
                self._idle.wait()
        finally:
            super().__exit__()

    def is_away(self) -> bool:
        if self.failure:
            raise self.failure
        return not (self._is_back and self.status is None)

    def restarts(self) -> Iterator[str]:
        while not self._untold.empty():
            yield self._untold.get()

    # --- in its thread ------------------------------------------------------------------------

    def _tend(self) -> None:
        """Watches the server. Returns after the server has ended, because its parent is this thread."""
        try:
            while not (self._over.wait(POLL_S) or self.failure):
                self._look()
        except Exception as error:
            self.failure = JobFailedError(
                f"{self.name} cannot be watched or started again: {one_line(error)}"
            )
        self._idle.set()
        while self.status is None:
            time.sleep(POLL_S)

    def _look(self) -> None:
        if self.status is not None:
            self._is_back = False
            self._start_again(time.monotonic())
            return
        state = self._connection.state()
        self._silence.observe(time.monotonic(), answers=state != "silent")
        self._is_back = self._is_back or state == "ready"
        if self._silence.is_too_long:
            self._why = f"has not answered for {LONGEST_SILENCE_S:.0f} s, and was killed"
            self.kill()

    def _start_again(self, now: float) -> None:
        if not self._restarts.is_pending:
            self._restarts.record_end(now)
            words = f"{self.name} {self._why or in_words(self.status)}; see {self.log}"
            if self._restarts.is_spent:
                spent = self._restarts.spent_message("restarts.services")
                self.failure = JobFailedError(f"{words} ({self.last_words}); {spent}")
                return
            self._untold.put(words)
            print_message(f"{words}; it is started again")
        if self._restarts.is_due(now):
            self._why = None
            self._silence = Silence(now)
            self.start()
