"""Requests to a server's `/score`, retried until they are answered or their time is over."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

import aiohttp
import numpy as np

from contracts.inference import ContractInfo, ScoreRequest, ScoreResponse
from contracts.limits import Limits
from pipelinerl.clients.answer_bodies import body_of

log = logging.getLogger(__name__)

POLL_S = 0.2
ANSWER_TIMEOUT_S = 10.0  # for `/health` and `/contract`
FIRST_PAUSE_S = 0.2  # wait before the first retry; doubles with each
LONGEST_PAUSE_S = 10.0
NEARLY = 0.95  # tolerance of `silence_s`, because timeouts and clocks differ slightly
LONGEST_ANSWER = 2**30  # bytes, enough for the scores of a row


class NoScoresError(Exception):
    """The server does not score the requested sequences."""


class OtherVersionError(Exception):
    """The server has not yet received the requested weight version from the trainer."""


class Scores(NamedTuple):
    """The log-probabilities of each sequence of T ids, and their weight version."""

    logprobs: list[np.ndarray]  # [T - 1] float32 each, of all ids but the first
    version: int


class ScoreRequests:
    """The requests to one server's `/score`.

    deadline_s: time for which a request is retried.
    on_silence: called with a message if no request has been answered for `silence_s`.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        deadline_s: float,
        silence_s: float,
        on_silence: Callable[[str], object],
    ):
        self._session = session
        self._url = url
        self._deadline_s = deadline_s
        self._silence_s = silence_s
        self._on_silence = on_silence
        self._answered_at = 0.0  # time of the last answer, or of a refused or reset connection
        self._awaited = 0  # last version whose wait has been logged
        self._limits = Limits()

    async def ready(self, timeout_s: float) -> None:
        """Waits for the server. Raises TimeoutError, or ValueError if it cannot score."""
        deadline = _now() + timeout_s
        while _now() < deadline:
            try:
                return await self._check_scores()
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(POLL_S)
        raise TimeoutError(f"the reference server was not ready within {timeout_s:g} s")

    async def _check_scores(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with self._session.get(f"{self._url}/health", timeout=timeout, raise_for_status=True):
            pass
        info = await self._contract()
        if "score" not in info.capabilities:
            raise ValueError(f"reference: {info.engine} does not declare `score`; choose another server")
        self._limits = info.limits or self._limits

    async def _contract(self) -> ContractInfo:
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with self._session.get(
            f"{self._url}/contract", timeout=timeout, raise_for_status=True
        ) as answer:
            return ContractInfo.model_validate(await answer.json(content_type=None))

    async def score(
        self, sequences: list[list[int]], temperature: float, version: int | None = None
    ) -> Scores:
        """Returns the scores of at least one sequence, by the weights of `version`; None = any.

        Waits without a limit while the server has another version. Raises NoScoresError if the server refuses
        the request or does not answer in time.
        """
        most = self._limits.max_sequences
        parts = [sequences[at : at + most] for at in range(0, len(sequences), most)]
        scores = [await self._score_part(part, temperature, version) for part in parts]
        return Scores([logprobs for part in scores for logprobs in part.logprobs], scores[-1].version)

    async def _score_part(
        self, sequences: list[list[int]], temperature: float, version: int | None
    ) -> Scores:
        request = ScoreRequest(sequences=sequences, temperature=temperature).wire()
        deadline = _now() + self._deadline_s
        pause_s = FIRST_PAUSE_S
        first_sent = _now()
        while True:
            try:
                answer = await self._answer_by(version, request)
                self._answered_at = _now()
                return Scores(_arrays(answer, sequences), answer.version)
            except OtherVersionError as error:
                self._wait_for_version(version, error)
                first_sent = _now()
                deadline = first_sent + self._deadline_s
                pause_s = FIRST_PAUSE_S
            except (aiohttp.ClientError, TimeoutError) as error:
                self._check_silence(error, first_sent)
                if _now() + pause_s > deadline:
                    raise NoScoresError(
                        f"the reference server has not answered /score within {self._deadline_s:g} s; "
                        f"the last time: {type(error).__name__} {error}"
                    ) from error
                log.warning("the reference server is asked again: %s %s", type(error).__name__, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _answer_by(self, version: int | None, request: dict) -> ScoreResponse:
        """Returns the answer by the weights of `version`. Raises OtherVersionError for other weights."""
        if version is None:
            return await self._answer(request)
        _check_version((await self._contract()).weights.version, version)
        answer = await self._answer(request)
        _check_version(answer.version, version)
        return answer

    def _wait_for_version(self, version: int, error: OtherVersionError) -> None:
        """Records an answer, and logs the wait once for each version."""
        self._answered_at = _now()
        if version != self._awaited:
            self._awaited = version
            log.info("%s", error)

    def _check_silence(self, error: Exception, first_sent: float) -> None:
        """Reports a silence that is too long. A refused or reset connection ends a silence."""
        now = _now()
        seconds = now - max(first_sent, self._answered_at)
        if not isinstance(error, TimeoutError):
            self._answered_at = now
        elif seconds >= NEARLY * self._silence_s:
            self._answered_at = now
            self._on_silence(f"it left /score without an answer for {seconds:.0f} s")

    async def _answer(self, request: dict) -> ScoreResponse:
        async with self._session.post(f"{self._url}/score", json=request, allow_redirects=False) as response:
            if response.status == 429 or response.status >= 500:
                response.raise_for_status()
            body = await body_of(response, LONGEST_ANSWER)
            if response.status != 200:
                text = body.decode(errors="replace")[:500]
                raise NoScoresError(f"the reference server answered {response.status} to /score: {text}")
        try:
            return ScoreResponse.model_validate_json(body)
        except ValueError as error:
            raise NoScoresError(
                f"the reference server answered /score outside the contract: {error}"
            ) from error


def _now() -> float:
    return asyncio.get_running_loop().time()


def _check_version(served: int, version: int) -> None:
    if served != version:
        raise OtherVersionError(f"the reference server serves version {served}; version {version} is awaited")


def _arrays(answer: ScoreResponse, sequences: list[list[int]]) -> list[np.ndarray]:
    scores = [np.array(of_sequence, dtype=np.float32) for of_sequence in answer.logprobs]
    if [len(s) for s in scores] != [len(ids) - 1 for ids in sequences]:
        raise NoScoresError("the reference server did not score every token of every sequence")
    if not all(np.isfinite(s).all() for s in scores):
        raise NoScoresError("a log-probability of the reference server is not finite")
    return scores
