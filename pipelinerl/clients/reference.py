"""The client of the reference server, which scores the training sequences by the reference policy.

The server has the start model, or the last renewal from the trainer
(`pipelinerl.training.reference_updates`). The preprocessor uses it for KL terms if `reference` is configured.
Requests run in a separate thread, for several rows at a time.
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

    start_timeout_s: longest wait for the server to be ready.
    score_timeout_s: timeout of one request. A request is retried for the sum of both times, because the
        server may restart meanwhile.
    wait_for: waits until one of the futures is done.
    on_silence: called with a message, in the caller's thread, if the server does not answer for too long.
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
        self._requests = ScoreRequests(session, url, deadline_s, score_timeout_s, self._record_silence)
        ready = self._run(self._requests.ready(start_timeout_s))
        self._wait_for([ready])
        try:
            ready.result()
        except TimeoutError as error:
            on_silence(str(error))
            raise

    def begin(self, row: MicroBatchRow, version: int | None = None) -> None:
        """Starts to score a row by the weights of `version`; None = any version.

        Does not wait. Must not be called while `is_full`.
        """
        self._under_way.append(self._run(self._scored(row, version)))

    @property
    def is_full(self) -> bool:
        return sum(not scored.done() for scored in self._under_way) >= ROWS_UNDER_WAY

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way)

    def finished(self) -> list[ScoredRow]:
        """Returns the scored rows, in the order of `begin`.

        A row is returned after all earlier ones. Raises NoScoresError if the server does not score a row.
        """
        self._report_silence()
        rows = []
        while self._under_way and self._under_way[0].done():
            rows.append(self._under_way.popleft().result())
        return rows

    def _record_silence(self, words: str) -> None:
        """Passes the message to the caller's thread. Called in the requests' thread."""
        if not self._silence.done():
            self._silence.set_result(words)

    def _report_silence(self) -> None:
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

        The scores are at the sampling temperature. `reference_version` is their weight version.
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
