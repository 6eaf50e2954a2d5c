"""The async client that rollouts talk to: one chat completion, token for token.

Every answer is checked against the contract before anything is made of it; what does not fit is a
`BadAnswer`, which ends one attempt and never the run.
"""

from dataclasses import dataclass, replace
from hashlib import blake2b

import aiohttp
import numpy as np

from contracts.records import Completion, VersionSpan
from pipelinerl.domains.base import Answer
from pipelinerl.server_pool import ServerPool, ServerUnavailable


class ServerError(Exception):
    """The server refused this request; the message is the contract's code."""


class ServerFailed(ServerUnavailable):
    """The server could not be reached, or failed; the message is the contract's code, or `connection`."""


class BadAnswer(Exception):
    """The server's answer breaks the contract."""


@dataclass(frozen=True)
class Sampling:
    model: str
    temperature: float
    max_tokens: int
    seed: int | None = None  # None = not repeatable


class LLMClient:
    """Samples from whichever server of the pool is least busy."""

    def __init__(self, session: aiohttp.ClientSession, pool: ServerPool, sampling: Sampling):
        self._session, self._pool, self._sampling = session, pool, sampling
        self._requests = 0

    def of_attempt(self, name: str) -> "LLMClient":
        """For one attempt alone: where sampling is seeded, its n-th request always has the same seed."""
        if self._sampling.seed is None:
            return self
        seed = _hashed(f"{self._sampling.seed} {name}")
        return LLMClient(self._session, self._pool, replace(self._sampling, seed=seed))

    async def chat(self, messages: list[dict[str, str]]) -> Answer:
        sampling = self._sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=_hashed(f"{sampling.seed} {self._requests}"))
            self._requests += 1
        async with self._pool.server() as url:
            return await chat(self._session, url, messages, sampling)


def _hashed(text: str) -> int:
    """31 bits: what every engine takes as a seed."""
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


async def chat(
    session: aiohttp.ClientSession, url: str, messages: list[dict[str, str]], sampling: Sampling
) -> Answer:
    """One chat completion of one server. Raises ServerError, ServerFailed or BadAnswer."""
    request = {
        "model": sampling.model,
        "messages": messages,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "logprobs": True,
    }
    if sampling.seed is not None:
        request["seed"] = sampling.seed
    try:
        async with session.post(f"{url}/v1/chat/completions", json=request) as response:
            status, body = response.status, await response.json(content_type=None)
    except aiohttp.ClientError as error:
        raise ServerFailed("connection") from error
    except ValueError as error:
        raise BadAnswer(f"{url} did not answer in JSON: {error}") from error
    if status != 200:
        raise (ServerFailed if status >= 500 else ServerError)(_error_code(status, body))
    try:
        answer = _parse(body, sampling.temperature, url)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadAnswer(f"{url} answered outside the contract: {error!r}") from error
    if answer.completion.finish_reason == "abort":
        raise ServerError("abort")
    return answer


def _error_code(status: int, body: object) -> str:
    error = body.get("error", {}) if isinstance(body, dict) else {}
    return str(error.get("code", status))


def _parse(body: dict, temperature: float, url: str) -> Answer:
    choice = body["choices"][0]
    completion = Completion(
        prompt_token_ids=np.array(body["prompt_token_ids"], dtype=np.int32),
        token_ids=np.array(choice["token_ids"], dtype=np.int32),
        logprobs=np.array([t["logprob"] for t in choice["logprobs"]["content"]], dtype=np.float32),
        spans=[VersionSpan(s["version"], s["start"], s["end"]) for s in choice["weight_versions"]],
        temperature=temperature,
        finish_reason=choice["finish_reason"],
        server=url,
    )
    _check(completion)
    return Answer(text=choice["message"]["content"] or "", completion=completion)


def _check(completion: Completion) -> None:
    sampled = len(completion.token_ids)
    if len(completion.logprobs) != sampled:
        raise ValueError(f"{len(completion.logprobs)} log-probabilities for {sampled} tokens")
    if not np.isfinite(completion.logprobs).all():
        raise ValueError("a log-probability is not finite")
    ends = [0, *(span.end for span in completion.spans)]
    starts = [*(span.start for span in completion.spans), sampled]
    versions = [span.version for span in completion.spans]
    if ends != starts or versions != sorted(versions):
        raise ValueError(f"weight_versions do not cover {sampled} tokens once, in order: {completion.spans}")
