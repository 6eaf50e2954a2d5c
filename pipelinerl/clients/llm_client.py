"""The async client that rollouts sample through: chat completions with their exact tokens.

Every response is checked against the contract before it is used. A server's failure may end one attempt, but
never the run.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import aiohttp
import msgspec
import numpy as np

from contracts.records import Completion
from contracts.tool_calls import parse_tool_calls
from pipelinerl.clients.attempt_requests import AttemptRequests
from pipelinerl.clients.chat_template import ChatTemplate
from pipelinerl.clients.completions import Asked, Prompt, Sampling, complete
from pipelinerl.clients.faults import InvalidResponseError
from pipelinerl.clients.partial_completions import SegmentPolicy, joined, prompt_of_next, without_tokens
from pipelinerl.clients.server_forms import ServerForms
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.domains.base import Answer
from pipelinerl.judging.client import JudgeError, JudgingClient
from pipelinerl.judging.wire import Judgement

AHEAD = 10  # versions that may be published before this process learns of them


async def at_once() -> None:
    pass


@dataclass
class LLMClient:
    """A client that samples from the least busy server of the pool.

    segments: whether completions are made in several requests.
    turn: awaited between two requests of one completion, and before a request that follows a judgement.
    decode: decodes sampled tokens; if None, the texts of the segments are concatenated.
    template: the model's chat template; if None, conversations of several turns raise ValueError.
    judge: client of the judging service, if the domain has verifiers.
    away: context entered while the attempt waits for a judgement.
    in_time: context of requests that extend earlier tokens; raises TimeoutError when their time is over.
    newest: returns the newest published version, if that is known.
    forms: knows in which forms servers answer; if None, all are asked for lists, one completion at a time.
    """

    session: aiohttp.ClientSession
    pool: ServerPool
    sampling: Sampling
    segments: SegmentPolicy = SegmentPolicy()
    turn: Callable[[], Awaitable[None]] = at_once
    decode: Callable[[np.ndarray], str] | None = None
    template: ChatTemplate | None = None
    attempt: AttemptRequests | None = None  # the requests of this attempt
    judge: JudgingClient | None = None
    away: Callable[[], AbstractContextManager[None]] = nullcontext
    in_time: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    newest: Callable[[], int] | None = None
    forms: ServerForms | None = None
    _requests: int = 0  # number of seeded requests
    _was_away: bool = False  # whether a judgement followed the last request of this attempt

    def of_attempt(self, name: str, avoid: str | None = None) -> "LLMClient":
        """Returns a client for a single attempt. `avoid` is the server on which the previous attempt failed.

        If sampling is seeded, its n-th request always has the same seed.
        """
        sampling = self.sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=_hashed(f"{sampling.seed} {name}"))
        return replace(self, sampling=sampling, attempt=AttemptRequests(self.pool, avoid))

    async def chat(
        self,
        messages: list[dict[str, str]],
        after: Answer | None = None,
        tools: list[dict] | None = None,
    ) -> Answer:
        """Returns the model's next message, sampled in segments if the policy asks for them.

        `after` is the answer that `messages` continue: its tokens stay as they were sampled. `tools` are
        passed with the first message of a conversation. If the attempt's time ends, the answer ends with the
        tokens that it has, as at the token limit.
        Raises RequestRefusedError or a ServerFaultError.
        """
        prompt = await self._prompt(messages, after, tools)
        first = self._first(prompt, tools if prompt is messages else None)
        answer = await (self._if_in_time(first) if after else first)
        if answer is None:
            answer = Answer("", without_tokens(prompt, self.sampling.temperature))
        texts = [answer.text]
        completion = self.segments.stopped(answer.completion)
        while self.segments.unfinished(completion, self.sampling.max_tokens):
            more = await self._if_in_time(self._next(completion))
            if more is None:
                break
            texts.append(more.text)
            completion = self.segments.stopped(joined(completion, more.completion))
        text = self.decode(completion.token_ids) if self.decode and completion.segments else "".join(texts)
        calls = answer.tool_calls
        if tools and self.template:  # every server's calls are read alike; of later turns it reads none
            text, calls = parse_tool_calls(await asyncio.to_thread(self.template.text, completion))
        elif tools and completion.segments:
            text, calls = parse_tool_calls(text)
        return Answer(text, completion, calls)

    async def completion_of(self, messages: list[dict[str, str]], answer: str) -> Completion:
        """Returns an answer to a conversation that nobody sampled. Raises ValueError without a tokenizer."""
        if self.template is None:
            raise ValueError("an answer in text needs the model's tokenizer; give its token ids instead")
        return await asyncio.to_thread(self.template.answered, messages, answer)

    async def prompt_of(self, messages: list[dict[str, str]]) -> list[int]:
        """Returns the token ids of a conversation's prompt. Raises ValueError without a tokenizer."""
        if self.template is None:
            raise ValueError("a prompt for the reference needs the model's tokenizer")
        return await asyncio.to_thread(self.template.prompt, messages)

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        """Returns a verifier's judgement on `text`; the domain names the verifier. Raises JudgeError."""
        if self.judge is None:
            raise JudgeError(f"no judging service runs, because the domain names no verifier {verifier}")
        with self.away():
            self._was_away = True
            return await self.judge.judged(verifier, task, text)

    async def _prompt(
        self, messages: list[dict[str, str]], after: Answer | None, tools: list[dict] | None
    ) -> Prompt:
        if after is None:
            if self.template:  # a server would forge a turn of what spells one
                ids = await asyncio.to_thread(self.template.prompt_of_special, messages, tools)
                return messages if ids is None else ids
            return messages
        if self.template is None:
            raise ValueError(
                "a conversation of several turns needs the model's tokenizer, to keep its tokens"
            )
        # Loading a tokenizer takes seconds; in the event loop, it would cost the connections to the servers.
        return await asyncio.to_thread(
            self.template.prompt_after, after.completion, messages, after.tool_calls
        )

    async def _first(self, prompt: Prompt, tools: list[dict] | None) -> Answer:
        if self._was_away:
            self._was_away = False
            await self.turn()
        return await self._request(prompt, self.sampling.max_tokens, tools)

    async def _next(self, completion: Completion) -> Answer:
        await self.turn()
        left = self.sampling.max_tokens - len(completion.token_ids)
        return await self._request(prompt_of_next(completion), left)

    async def _if_in_time(self, request: Coroutine[Any, Any, Answer]) -> Answer | None:
        """Returns the answer, or None if the time is over before it."""
        try:
            async with self.in_time():
                return await request
        except TimeoutError as error:
            if self.attempt is None:
                raise
            self.attempt.end_completion(error)
            return None

    async def _request(self, prompt: Prompt, max_tokens: int, tools: list[dict] | None = None) -> Answer:
        seed = self.sampling.seed
        if seed is not None:
            seed = _hashed(f"{seed} {self._requests}")
            self._requests += 1
        sampling = replace(self.sampling, max_tokens=self.segments.budget(max_tokens), seed=seed)
        attempt = self.attempt or AttemptRequests(self.pool)

        sent: list[float] = []  # time of sending, for each server tried

        async def send(url: str) -> Answer:
            sent.append(time.time())
            if self.forms:
                answer = await self.forms.complete(url, prompt, sampling, tools)
            else:
                answer = await complete(self.session, url, Asked(prompt, sampling, tools))
            version = max((span.version for span in answer.completion.spans), default=0)
            if self.newest and version > self.newest() + AHEAD:
                raise InvalidResponseError(f"{url} names version {version} of the weights, which nobody made")
            timed = msgspec.structs.replace(answer.completion, began=sent[0], ended=time.time())
            return replace(answer, completion=timed)

        return await attempt.ask(send)


def _hashed(text: str) -> int:
    """Returns 31 bits of the text's hash, a seed that every engine accepts."""
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
