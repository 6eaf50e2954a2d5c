"""Watches a run's own Redis server, and restarts it if it ends or does not answer.

The watch is a thread without streams, because the supervisor itself may wait for this server. A restart keeps
port, password and data, so that the processes of the run reconnect.
"""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contracts.support.messages import one_line
from extensions.redis_streams.server import ASK_TIMEOUT_S, RedisServer
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.supervising.ends import JobFailedError, Restarts, in_words
from pipelinerl.streams.of_run import StreamsServer

POLL_S = 0.1
LONGEST_SILENCE_S = 30.0  # time without an answer; shorter than the retries of the run's processes
LONGEST_WAIT_S = 5.0  # longest wait before a restart, because the complete run waits


@dataclass
class Silence:
    """The time for which a server has not answered. Pure; the caller passes the times.

    Time without questions, such as while the launcher is stopped, counts little.
    """

    began: float
    seconds: float = 0.0

    def observe(self, now: float, answers: bool) -> None:
        """Records the result of one question."""
        self.seconds = 0.0 if answers else self.seconds + min(now - self.began, 2 * ASK_TIMEOUT_S)
        self.began = now

    @property
    def is_too_long(self) -> bool:
        return self.seconds >= LONGEST_SILENCE_S


class OwnServer(RedisServer, StreamsServer):
    """A Redis server that is watched in its context. most: restarts within ten minutes."""

    name = "redis"

    def __init__(self, directory: Path, address: str, most: int):
        super().__init__(directory, address)
        self._restarts = Restarts(most, shortest_s=0.5, longest_s=LONGEST_WAIT_S)
        self._unreported: queue.SimpleQueue[str] = queue.SimpleQueue()  # reasons of restarts
        self._silence = Silence(time.monotonic())
        self._is_ready = True  # since its last start
        self._why: str | None = None  # reason why it was killed
        self._over = threading.Event()
        self._idle = threading.Event()  # set when the thread will start no server any more
        self._thread = threading.Thread(target=self._watch, daemon=True, name=self.name)

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
        return not (self._is_ready and self.status is None)

    def restarts(self) -> Iterator[str]:
        while not self._unreported.empty():
            yield self._unreported.get()

    # --- in its thread ------------------------------------------------------------------------

    def _watch(self) -> None:
        """Ends only after the server, because the end of this thread kills processes that it has started."""
        try:
            while not (self._over.wait(POLL_S) or self.failure):
                self._poll()
        except Exception as error:
            self.failure = JobFailedError(
                f"{self.name} cannot be watched or started again: {one_line(error)}"
            )
        self._idle.set()
        while self.status is None:
            time.sleep(POLL_S)

    def _poll(self) -> None:
        if self.status is not None:
            self._is_ready = False
            self._restart(time.monotonic())
            return
        state = self._connection.state()
        self._silence.observe(time.monotonic(), answers=state != "silent")
        self._is_ready = self._is_ready or state == "ready"
        if self._silence.is_too_long:
            self._why = f"has not answered for {LONGEST_SILENCE_S:.0f} s, and was killed"
            self.kill()

    def _restart(self, now: float) -> None:
        if not self._restarts.is_pending:
            self._restarts.ended(now)
            words = f"{self.name} {self._why or in_words(self.status)}; see {self.log}"
            if self._restarts.is_spent:
                spent = self._restarts.spent("restarts.services")
                self.failure = JobFailedError(f"{words} ({self.last_words}); {spent}")
                return
            self._unreported.put(words)
            say(f"{words}; it is started again")
        if self._restarts.is_due(now):
            self._why = None
            self._silence = Silence(now)
            self.start()
