"""The async client of rollouts: chat completions with their exact tokens.

Every response is checked against the contract. A server's failure may end an attempt, but never the run.
"""

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import aiohttp
import msgspec
import numpy as np

from contracts.records import Completion
from contracts.tool_calls import parse_tool_calls
from pipelinerl.clients.attempt_requests import AttemptRequests
from pipelinerl.clients.completions import Asked, Prompt, Sampling, complete
from pipelinerl.clients.faults import InvalidResponseError
from pipelinerl.clients.off_loop import OffLoop
from pipelinerl.clients.partial_completions import SegmentPolicy, joined, prompt_of_next, without_tokens
from pipelinerl.clients.server_forms import ServerForms
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.conversations.base import Conversation, Conversations, Messages, Option, Tools
from pipelinerl.domains.base import Answer
from pipelinerl.judging.client import JudgeError, JudgingClient
from pipelinerl.judging.wire import Judgement

AHEAD = 10  # versions that may be published before this process learns of them


async def immediately() -> None:
    pass


@dataclass
class LLMClient:
    """A client that samples from the least busy server of the pool.

    Set once in a process:

    segments: token budget of each request, if a completion takes several.
    decode: decodes sampled tokens; if None, the texts of the segments are concatenated.
    conversations: renders prompts and parses answers; if None, the servers do, and conversations of several
        turns raise ValueError.
    judge: client of the judging service, if the domain has verifiers.
    forms: the response formats of the servers; if None, requests are for lists and single completions.
    newest: returns the newest version that the trainer has made, if that is known.
    acquire_slot: waits for a request slot between two segments.

    Set for each try of an attempt, by the runner:

    options: options of the chat template.
    attempt: the requests of this try.
    away: context of a wait for a judgement.
    requesting: context of a completion, which needs a request slot.
    soft_deadline: context of requests that extend earlier tokens; raises TimeoutError at the deadline.
    """

    session: aiohttp.ClientSession
    pool: ServerPool
    sampling: Sampling
    segments: SegmentPolicy = SegmentPolicy()
    decode: Callable[[np.ndarray], str] | None = None
    conversations: Conversations | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    judge: JudgingClient | None = None
    forms: ServerForms | None = None
    newest: Callable[[], int] | None = None
    acquire_slot: Callable[[], Awaitable[None]] = immediately
    attempt: AttemptRequests | None = None
    away: Callable[[], AbstractContextManager[None]] = nullcontext
    requesting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    soft_deadline: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    _off_loop: OffLoop = field(default_factory=OffLoop)
    _requests: Counter[bytes] = field(default_factory=Counter)  # numbers of seeded requests, by prompt

    def limited(self, max_tokens: int | None = None, stop: Sequence[str] = ()) -> "LLMClient":
        """Returns a client of the same attempt whose answers end earlier: at a text, or at a length.

        Answers that end at a text are sampled in one segment, because a text may span two.
        """
        most = min(max_tokens or self.sampling.max_tokens, self.sampling.max_tokens)
        sampling = replace(self.sampling, max_tokens=most, stop=tuple(stop))
        segments = replace(self.segments, segment_tokens=None) if stop else self.segments
        return replace(self, sampling=sampling, segments=segments)

    def of_attempt(
        self, name: str, avoid: str | None = None, options: Mapping[str, Option] | None = None
    ) -> "LLMClient":
        """Returns a client for one attempt. A seed depends on `name`, the prompt, and how often it was asked.

        avoid: URL of the server on which the previous attempt failed. options: the problem's options of the
        chat template, over the client's.
        """
        sampling = self.sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=_hashed(f"{sampling.seed} {name}"))
        options = {**self.options, **(options or {})}
        attempt = AttemptRequests(self.pool, avoid)
        return replace(self, sampling=sampling, options=options, attempt=attempt, _requests=Counter())

    async def chat(
        self,
        messages: list[dict[str, str]],
        after: Answer | None = None,
        tools: list[dict] | None = None,
    ) -> Answer:
        """Returns the model's next message, sampled in segments if `segments` says so.

        after: the answer that `messages` follow; its sampled tokens are kept. tools: passed with the first
        turn. At the soft deadline, the answer ends as at the token limit. Raises RequestRefusedError or a
        ServerFaultError.
        """
        async with self.requesting():
            return await self._answer(messages, after, tools)

    async def _answer(
        self, messages: list[dict[str, str]], after: Answer | None, tools: list[dict] | None
    ) -> Answer:
        asked, prompt = await self._asked(messages, after, tools)
        first = self._request(prompt, self.sampling.max_tokens, tools if prompt is messages else None)
        answer = await (self._before_deadline(first) if after else first)
        if answer is None:
            answer = Answer("", without_tokens(prompt, self.sampling.temperature))
        texts = [answer.text]
        completion = self.segments.stopped(answer.completion)
        while self.segments.unfinished(completion, self.sampling.max_tokens):
            more = await self._before_deadline(self._next(completion))
            if more is None:
                break
            texts.append(more.text)
            completion = self.segments.stopped(joined(completion, more.completion))
        text = self.decode(completion.token_ids) if self.decode and completion.segments else "".join(texts)
        if self.conversations:
            return await self._off_loop.run(len(completion.token_ids), self._parsed, asked, completion, text)
        calls = answer.tool_calls
        if tools and completion.segments:
            text, calls = parse_tool_calls(text)
        return Answer(text, completion, calls)

    async def completion_of(self, messages: list[dict[str, str]], answer: str) -> Completion:
        """Returns a given answer as a completion. Raises ValueError without a tokenizer."""
        if self.conversations is None:
            raise ValueError("an answer in text needs the model's tokenizer; give its token ids instead")
        asked = Conversation(messages, options=self.options)
        return await self._off_loop.run(None, self.conversations.answered, asked, answer)

    async def prompt_of(self, messages: list[dict[str, str]]) -> list[int]:
        """Returns the token ids of a conversation's prompt. Raises ValueError without a tokenizer."""
        if self.conversations is None:
            raise ValueError("a prompt for the reference needs the model's tokenizer")
        return await self._rendered(Conversation(messages, options=self.options))

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        """Returns the judgement of a verifier of the domain on `text`. Raises JudgeError."""
        if self.judge is None:
            raise JudgeError(f"no judging service runs, because the domain names no verifier {verifier}")
        with self.away():
            return await self.judge.judged(verifier, task, text)

    async def _asked(
        self, messages: Messages, after: Answer | None, tools: Tools
    ) -> tuple[Conversation, Prompt]:
        """Returns the conversation to answer, and its prompt: token ids, or messages for the server."""
        if self.conversations is None and after is not None:
            raise ValueError(
                "a conversation of several turns needs the model's tokenizer, to keep its tokens"
            )
        asked = Conversation(messages, tools, self.options)
        if self.options and (self.conversations is None or not (after or asked.is_text)):
            raise ValueError("options of the chat template need a prompt that the pipeline renders")
        if after is not None:
            return await self._off_loop.run(None, self._continued, after, asked)
        if self.conversations is None or not asked.is_text:  # pictures are the servers' to render
            return asked, messages
        return asked, await self._rendered(asked)

    async def _rendered(self, asked: Conversation) -> list[int]:
        length = None if asked.tools else sum(len(message["content"]) for message in asked.messages)
        return await self._off_loop.run(length, self.conversations.render, asked)

    def _continued(self, after: Answer, new: Conversation) -> tuple[Conversation, list[int]]:
        """Returns the conversation after an answer with the messages of `new`, and its prompt."""
        if not new.is_text:
            raise ValueError("only the first turn of a conversation may have pictures")
        before = after.asked or replace(new, messages=[])
        if before.tools is None:
            before = replace(before, tools=new.tools)
        parsed = after.parsed or self.conversations.parse(before, after.completion)
        asked = before.then(parsed, new.messages)
        prompt = self.conversations.extend(before, after.completion, parsed, new.messages)
        if prompt is None and not before.is_text:
            raise ValueError("a conversation whose first turn the pipeline did not render cannot begin again")
        return asked, self.conversations.render(asked) if prompt is None else prompt

    def _parsed(self, asked: Conversation, completion: Completion, text: str) -> Answer:
        """Returns the answer, parsed in the same way for all servers, which parse no calls of token ids."""
        parsed = self.conversations.parse(asked, completion, None if asked.tools else text)
        if self.attempt:
            self.attempt.malformed_calls += parsed.malformed
        return Answer(parsed.text, completion, parsed.calls, asked, parsed)

    async def _next(self, completion: Completion) -> Answer:
        await self.acquire_slot()
        left = self.sampling.max_tokens - len(completion.token_ids)
        return await self._request(prompt_of_next(completion), left)

    async def _before_deadline(self, request: Coroutine[Any, Any, Answer]) -> Answer | None:
        """Returns the answer, or None at the soft deadline."""
        try:
            async with self.soft_deadline():
                return await request
        except TimeoutError as error:
            if self.attempt is None:
                raise
            self.attempt.end_completion(error)
            return None

    async def _request(self, prompt: Prompt, max_tokens: int, tools: list[dict] | None = None) -> Answer:
        seed = self.sampling.seed
        if seed is not None:
            asked = _digest_of(prompt)
            seed = _hashed(f"{seed} {asked.hex()} {self._requests[asked]}")
            self._requests[asked] += 1
        sampling = replace(self.sampling, max_tokens=self.segments.budget(max_tokens), seed=seed)
        attempt = self.attempt or AttemptRequests(self.pool)

        sent: list[float] = []  # time of sending to each server

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


def _digest_of(prompt: Prompt) -> bytes:
    is_ids = len(prompt) > 0 and not isinstance(prompt[0], Mapping)
    content = (
        np.asarray(prompt, np.int32).tobytes() if is_ids else json.dumps(prompt, sort_keys=True).encode()
    )
    return blake2b(content, digest_size=16).digest()


def _hashed(text: str) -> int:
    """Returns 31 bits of the text's hash, because every engine accepts such a seed."""
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
