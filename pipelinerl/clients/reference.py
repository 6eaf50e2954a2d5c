"""The reference policy: a frozen server, outside the weight group, that scores what is trained on.

It is one more server with the model that the run began with, asked through the inference contract's
`/score`. Used by the preprocessor when `reference` is configured, for KL terms.
"""

import asyncio
import time

import aiohttp
import msgspec
import numpy as np

from contracts.inference import ContractInfo, ScoreRequest, ScoreResponse
from contracts.records import MicroBatchRow, TrainingSequence
from pipelinerl.clients.http_session import open_session

POLL_S = 0.2
ANSWER_TIMEOUT_S = 10.0  # for answers that wait for nothing


class Reference:
    def __init__(self, url: str, token: str | None, start_timeout_s: float, score_timeout_s: float):
        """Waits until the server is ready. Raises TimeoutError, or ValueError where it cannot score."""
        self._url = url
        self._loop = asyncio.Runner()
        self._session = self._loop.run(_opened(token, score_timeout_s))
        self._loop.run(self._ready(start_timeout_s))

    async def _ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                return await self._check_scores()
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(POLL_S)
        raise TimeoutError(f"the reference server was not ready within {timeout_s:g} s")

    async def _check_scores(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with self._session.get(f"{self._url}/health", timeout=timeout, raise_for_status=True):
            pass
        async with self._session.get(
            f"{self._url}/contract", timeout=timeout, raise_for_status=True
        ) as answer:
            info = ContractInfo.model_validate(await answer.json(content_type=None))
        if "score" not in info.capabilities:
            raise ValueError(f"reference: {info.engine} does not declare `score`; choose another server")

    def scored(self, row: MicroBatchRow) -> MicroBatchRow:
        """The row with `reference_logprobs` in each sequence."""
        sequences = [s for micro_batch in row.micro_batches for s in micro_batch]
        if not sequences:
            return row
        scores = iter(self._loop.run(self._score_with_retry(sequences)))
        micro_batches = [
            [msgspec.structs.replace(s, reference_logprobs=next(scores)) for s in micro_batch]
            for micro_batch in row.micro_batches
        ]
        return msgspec.structs.replace(row, micro_batches=micro_batches)

    async def _score_with_retry(self, sequences: list[TrainingSequence]) -> list[np.ndarray]:
        """A connection may break once."""
        try:
            return await self._score(sequences)
        except aiohttp.ClientConnectionError:
            return await self._score(sequences)

    async def _score(self, sequences: list[TrainingSequence]) -> list[np.ndarray]:
        """[T] float32 each, 0 at the first token. All were sampled at the run's temperature."""
        request = ScoreRequest(
            sequences=[s.token_ids.tolist() for s in sequences], temperature=sequences[0].temperature
        )
        async with self._session.post(f"{self._url}/score", json=request.wire()) as response:
            body = await response.json(content_type=None)
            if response.status != 200:
                raise RuntimeError(f"the reference server answered {response.status} to /score: {body}")
        logprobs = ScoreResponse.model_validate(body).logprobs
        return [np.array([0.0, *of_sequence], dtype=np.float32) for of_sequence in logprobs]


async def _opened(token: str | None, timeout_s: float) -> aiohttp.ClientSession:
    return open_session(token, timeout_s)
