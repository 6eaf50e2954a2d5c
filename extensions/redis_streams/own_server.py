"""Watches the Redis server of a run's own, and starts it again on its log when it dies or falls silent.

It does so in a thread that needs no stream: the supervisor may wait for an answer of that very server. The
server has its port, its password and its data as before, and the processes of the run connect again.
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
LONGEST_SILENCE_S = 30.0  # of a process that runs; shorter than what a command of the run waits for it
LONGEST_WAIT_S = 5.0  # before a restart: the whole run waits meanwhile


@dataclass
class Silence:
    """Measures how long a server has not answered. It is pure: times are given.

    Time in which nobody asked, as while the launcher was stopped, counts little.
    """

    began: float
    seconds: float = 0.0

    def observe(self, now: float, answers: bool) -> None:
        """Takes one question into account, which was answered or not by `now`."""
        self.seconds = 0.0 if answers else self.seconds + min(now - self.began, 2 * ASK_TIMEOUT_S)
        self.began = now

    @property
    def is_too_long(self) -> bool:
        return self.seconds >= LONGEST_SILENCE_S


class OwnServer(RedisServer, StreamsServer):
    """Is tended between `__enter__` and `__exit__`. most: restarts within ten minutes."""

    name = "redis"

    def __init__(self, directory: Path, address: str, most: int):
        super().__init__(directory, address)
        self._restarts = Restarts(most, shortest_s=0.5, longest_s=LONGEST_WAIT_S)
        self._untold: queue.SimpleQueue[str] = queue.SimpleQueue()  # why it was started again
        self._silence = Silence(time.monotonic())
        self._is_back = True  # since it was started last
        self._why: str | None = None  # it was killed
        self._over = threading.Event()
        self._idle = threading.Event()  # set when the thread starts nothing more
        self._thread = threading.Thread(target=self._tend, daemon=True, name=self.name)

    def __enter__(self) -> "OwnServer":
        super().__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        try:
            if self._thread.ident is not None:  # its start did not fail
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
        """Ends when the server has: a process that this thread has started is killed by its end."""
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
