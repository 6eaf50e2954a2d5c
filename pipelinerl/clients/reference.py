"""The reference policy: a server outside the weight group that scores the training sequences.

It serves the model that the run began with, or that of its last renewal, which the trainer sends to it
(`pipelinerl.training.reference_updates`). The preprocessor uses it for KL terms if `reference` is configured.
Its requests run in a thread of their own, several rows at a time.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Thread
from typing import Any, NamedTuple

import aiohttp
import msgspec

from contracts.records import MicroBatchRow
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.reference_prompts import to_score, with_scores
from pipelinerl.clients.score_requests import ScoreRequests

ROWS_UNDER_WAY = 4


def _wait(futures: Sequence[Future]) -> None:
    wait(futures, return_when=FIRST_COMPLETED)


def _do_nothing(_: str) -> None:
    pass


class ScoredRow(NamedTuple):
    """A row with its scores, and the time when they were requested."""

    row: MicroBatchRow
    began: float  # unix seconds
    seconds: float


class Reference:
    """A client of the reference server.

    start_timeout_s: how long the server may take to be ready.
    score_timeout_s: timeout of one request. A request is retried for the sum of both times, because the
        server may restart meanwhile.
    wait_for: waits until one of the futures is done, in the manner of the calling process.
    on_silence: is called with a message, in the caller's thread, if the server has been silent for long.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        start_timeout_s: float,
        score_timeout_s: float,
        wait_for: Callable[[Sequence[Future]], object] = _wait,
        on_silence: Callable[[str], object] = _do_nothing,
    ):
        """Waits until the server is ready. Raises TimeoutError, or ValueError if it cannot score."""
        self._wait_for = wait_for
        self._on_silence = on_silence
        self._silence: Future[str] = Future()
        self._under_way: deque[Future[ScoredRow]] = deque()  # in the order of the rows
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="reference", daemon=True).start()
        session = self._run(_opened(token, score_timeout_s)).result()
        deadline_s = start_timeout_s + score_timeout_s
        self._requests = ScoreRequests(session, url, deadline_s, score_timeout_s, self._hear_silence)
        ready = self._run(self._requests.ready(start_timeout_s))
        self._wait_for([ready])
        try:
            ready.result()
        except TimeoutError as error:
            on_silence(str(error))
            raise

    def begin(self, row: MicroBatchRow, version: int | None = None) -> None:
        """Begins to score a row by the weights of `version`, or by any if it is None.

        It never waits; must not be called while `is_full`.
        """
        self._under_way.append(self._run(self._scored(row, version)))

    @property
    def is_full(self) -> bool:
        """Whether the highest number of rows is under way."""
        return sum(not scored.done() for scored in self._under_way) >= ROWS_UNDER_WAY

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way)

    def finished(self) -> list[ScoredRow]:
        """Returns the rows that have their scores by now, in the order of their `begin`.

        A row waits for the rows begun before it. Raises NoScoresError if the server does not score a row.
        """
        self._tell_of_silence()
        rows = []
        while self._under_way and self._under_way[0].done():
            rows.append(self._under_way.popleft().result())
        return rows

    def _hear_silence(self, words: str) -> None:
        """Passes the message to the caller's thread; runs in the thread of the requests."""
        if not self._silence.done():
            self._silence.set_result(words)

    def _tell_of_silence(self) -> None:
        if self._silence.done():
            self._on_silence(self._silence.result())
            self._silence = Future()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Future:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _scored(self, row: MicroBatchRow, version: int | None) -> ScoredRow:
        began = time.time()
        since = time.monotonic()
        with_scores = await self._with_scores(row, version)
        return ScoredRow(with_scores, began, time.monotonic() - since)

    async def _with_scores(self, row: MicroBatchRow, version: int | None) -> MicroBatchRow:
        """Returns the row with `reference_logprobs` in each sequence: `[T]` float32, 0 at the first token.

        The scores are computed at the run's temperature. The row names the version that they are of.
        """
        sequences = [s for micro_batch in row.micro_batches for s in micro_batch]
        if not sequences:
            return row
        ids = [of_request for s in sequences for of_request in to_score(s)]
        scores = await self._requests.score(ids, sequences[0].temperature, version)
        logprobs = iter(scores.logprobs)
        micro_batches = [[with_scores(s, logprobs) for s in micro_batch] for micro_batch in row.micro_batches]
        return msgspec.structs.replace(row, micro_batches=micro_batches, reference_version=scores.version)


async def _opened(token: str | None, timeout_s: float) -> aiohttp.ClientSession:
    return open_session(token, timeout_s)
