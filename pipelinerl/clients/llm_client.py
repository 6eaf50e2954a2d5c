"""The async client that rollouts talk to: chat completions, token for token.

Every response is checked against the contract before it is used. A server's failure may end one attempt, and
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

AHEAD = 10  # versions that this process may not have heard of yet


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
    in_time: entered while tokens are added to others; raises TimeoutError when the time for it is over.
    newest: the newest version that is known of, where that is known.
    forms: knows in which forms servers answer; without it all are asked for lists, one at a time.
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
    _requests: int = 0  # their number
    _was_away: bool = False  # since the last request of this attempt

    def of_attempt(self, name: str, avoid: str | None = None) -> "LLMClient":
        """Returns a client for one attempt alone; `avoid` is the server that the one before failed on.

        Where sampling is seeded, its n-th request always has the same seed.
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
        """Returns the server's next message, in segments where the policy says so.

        `after` is the answer that `messages` continue: its tokens stay as they were sampled. `tools` are
        given with the first message of a conversation. Where the attempt's time ends, the answer ends
        with the tokens that it has, as at the token limit.
        Raises RequestRefusedError or a ServerFaultError.
        """
        prompt = await self._prompt(messages, after)
        first = self._first(prompt, None if after else tools)
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
        """Returns None where the time is over first."""
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

        sent: list[float] = []  # when, to each server in turn

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
    """31 bits: what every engine takes as a seed."""
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
