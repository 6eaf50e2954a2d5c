"""The async client that rollouts talk to: chat completions, token for token.

Every response is checked against the contract before it is used. One that does not fit raises
`InvalidResponseError`, which ends one attempt and never the run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import aiohttp
import numpy as np

from contracts.records import Completion, VersionSpan
from contracts.tool_calls import ToolCall, parse_tool_calls
from pipelinerl.clients.chat_template import ChatTemplate
from pipelinerl.clients.partial_completions import SegmentPolicy, joined, prompt_of_next
from pipelinerl.clients.server_pool import ServerPool, ServerUnavailableError
from pipelinerl.domains.base import Answer
from pipelinerl.judging.client import JudgeError, JudgingClient
from pipelinerl.judging.wire import Judgement

Prompt = list[dict[str, str]] | list[int]  # a conversation, or token ids


class RequestRefusedError(Exception):
    """The server refused this request; the message is the contract's code."""


class InvalidResponseError(Exception):
    """The server's answer breaks the contract."""


@dataclass(frozen=True)
class Sampling:
    model: str
    temperature: float
    max_tokens: int
    seed: int | None = None  # None = not repeatable


async def at_once() -> None:
    pass


@dataclass
class LLMClient:
    """Samples from whichever server of the pool is least busy.

    segments: whether completions are made in several requests.
    turn: waited for between two requests of one completion, and before one that follows a judgement.
    decode: text of sampled tokens; without one, the texts of its segments are put together.
    template: of the model; without one, a conversation cannot continue token for token.
    judge: the judging service, where the domain has verifiers.
    away: entered while a judgement is waited for.
    """

    session: aiohttp.ClientSession
    pool: ServerPool
    sampling: Sampling
    segments: SegmentPolicy = SegmentPolicy()
    turn: Callable[[], Awaitable[None]] = at_once
    decode: Callable[[np.ndarray], str] | None = None
    template: ChatTemplate | None = None
    judge: JudgingClient | None = None
    away: Callable[[], AbstractContextManager[None]] = nullcontext
    _requests: int = 0  # of this attempt
    _was_away: bool = False  # since the last request of this attempt

    def of_attempt(self, name: str) -> "LLMClient":
        """Returns a client for one attempt alone.

        Where sampling is seeded, its n-th request always has the same seed.
        """
        if self.sampling.seed is None:
            return self
        return replace(self, sampling=replace(self.sampling, seed=_hashed(f"{self.sampling.seed} {name}")))

    async def chat(
        self,
        messages: list[dict[str, str]],
        after: Answer | None = None,
        tools: list[dict] | None = None,
    ) -> Answer:
        """Returns the server's next message, in segments where the policy says so.

        `after` is the answer that `messages` continue: its tokens stay as they were sampled. `tools` are
        given with the first message of a conversation. Raises RequestRefusedError, ServerUnavailableError
        or InvalidResponseError.
        """
        prompt = await self._prompt(messages, after)
        if self._was_away:
            self._was_away = False
            await self.turn()
        answer = await self._request(prompt, self.sampling.max_tokens, None if after else tools)
        texts = [answer.text]
        completion = self.segments.stopped(answer.completion)
        while self.segments.unfinished(completion, self.sampling.max_tokens):
            await self.turn()
            left = self.sampling.max_tokens - len(completion.token_ids)
            more = await self._request(prompt_of_next(completion), left)
            texts.append(more.text)
            completion = self.segments.stopped(joined(completion, more.completion))
        text = self.decode(completion.token_ids) if self.decode and completion.segments else "".join(texts)
        calls = answer.tool_calls
        if tools and (after or completion.segments):  # the server was asked for text
            text, calls = parse_tool_calls(text)
        return Answer(text, completion, calls)

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        """Returns the judgement of a verifier, by the name that the domain gives it. Raises JudgeError."""
        if self.judge is None:
            raise JudgeError(f"no judging service runs, because the domain names no verifier {verifier}")
        with self.away():
            self._was_away = True
            return await self.judge.judged(verifier, task, text)

    async def _prompt(self, messages: list[dict[str, str]], after: Answer | None) -> Prompt:
        if after is None:
            return messages
        if self.template is None:
            raise ValueError(
                "a conversation of several turns needs the model's tokenizer, to keep its tokens"
            )
        # Loading a tokenizer takes seconds, in which the connections to the servers would be lost.
        return await asyncio.to_thread(self.template.prompt_after, after.completion, messages)

    async def _request(self, prompt: Prompt, max_tokens: int, tools: list[dict] | None = None) -> Answer:
        sampling = replace(self.sampling, max_tokens=self.segments.budget(max_tokens))
        if sampling.seed is not None:
            sampling = replace(sampling, seed=_hashed(f"{sampling.seed} {self._requests}"))
            self._requests += 1
        async with self.pool.server() as url:
            return await complete(self.session, url, prompt, sampling, tools)


def _hashed(text: str) -> int:
    """31 bits: what every engine takes as a seed."""
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


async def complete(
    session: aiohttp.ClientSession,
    url: str,
    prompt: Prompt,
    sampling: Sampling,
    tools: list[dict] | None = None,
) -> Answer:
    """Returns one completion by one server.

    Raises RequestRefusedError, ServerUnavailableError or InvalidResponseError.
    """
    chat = isinstance(prompt[0], dict)
    route = "/v1/chat/completions" if chat else "/v1/completions"
    request = {
        "model": sampling.model,
        "messages" if chat else "prompt": prompt,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "logprobs": True,
    }
    if sampling.seed is not None:
        request["seed"] = sampling.seed
    if tools:
        request["tools"] = tools
    try:
        async with session.post(url + route, json=request) as response:
            status = response.status
            body = await response.json(content_type=None)
    except aiohttp.ClientError as error:
        raise ServerUnavailableError("connection") from error
    except ValueError as error:
        raise InvalidResponseError(f"{url} did not answer in JSON: {error}") from error
    if status != 200:
        raise (ServerUnavailableError if status >= 500 else RequestRefusedError)(_error_code(status, body))
    try:
        answer = _parse(body, sampling.temperature, url)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidResponseError(f"{url} answered outside the contract: {error!r}") from error
    if answer.completion.finish_reason == "abort":
        raise RequestRefusedError("abort")
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
        # A call ends a completion as anything else that the model says does.
        finish_reason="stop" if choice["finish_reason"] == "tool_calls" else choice["finish_reason"],
        server=url,
    )
    _check(completion)
    message = choice.get("message", {})
    calls = [ToolCall.model_validate(call) for call in message.get("tool_calls") or []]
    text = message["content"] if message else choice["text"]
    return Answer(text or "", completion, calls)


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
