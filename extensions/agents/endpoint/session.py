"""One session of the endpoint: what one program asked in one attempt, and what it was answered."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from contracts.records import Completion
from extensions.agents.endpoint.answers import message_of
from extensions.agents.endpoint.history import History, Node, Place
from extensions.agents.endpoint.requests import ChatRequest, RefusedError
from pipelinerl.clients.completions import TOO_LONG
from pipelinerl.clients.faults import RequestError, RequestRefusedError, ServerFaultError
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.domains.base import Answer, AttemptFailedError

MOST_ANSWERS = 10_000
MOST_BYTES = 64 << 20  # of prompts, tokens and messages that a session keeps
ANSWER_BYTES = 2048  # of an answer beside its tokens and messages, about
MESSAGE_BYTES = 300  # of each message before it, about, without its text
FORGOTTEN = "this session has ended"


@dataclass(frozen=True)
class Reply:
    """An answer that is not yet delivered."""

    request: ChatRequest
    place: Place
    answer: Answer
    message: dict[str, Any]


class Session:
    """A session. Its client samples for one attempt.

    renders: True if the chat template renders each prompt as a whole; else sampled tokens stay as they are.
    tools: True if the model shows tools.
    counts: what happened, by the name of a metric.
    stopped: set when no request can be answered any more, for the reason `failure`, or because the attempt's
        time is over.
    """

    def __init__(self, client: LLMClient, renders: bool, tools: bool, stopped: asyncio.Event | None = None):
        self._client = client
        self._renders = renders
        self._tools = tools
        self._working: set[asyncio.Task] = set()
        self._is_ended = False
        self._bytes = 0
        self.stopped = stopped or asyncio.Event()
        self.failure: Exception | None = None
        self.is_out_of_time = False
        self.history = History()
        self.counts: Counter[str] = Counter()

    @contextmanager
    def working(self) -> Iterator[None]:
        """The context of a request in the current task. The end of the session cancels it."""
        if self._is_ended:
            raise RefusedError(FORGOTTEN, code="forbidden", status=403)
        task = asyncio.current_task()
        self._working.add(task)
        try:
            yield
        except asyncio.CancelledError:
            self.counts["called_off"] += not self._is_ended
            raise
        finally:
            self._working.discard(task)

    async def end(self) -> None:
        """Ends the session, and the requests in flight."""
        self._is_ended = True
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    async def reply(self, request: ChatRequest) -> Reply:
        """Returns the answer to a request. Raises RefusedError."""
        self.check()
        self._check_tools(request)
        self.counts["requests"] += 1
        self.counts.update(request.counts)
        place = self.history.place(request.chains)
        self.counts[f"roots_{place.kind}" if place.kind else "continued"] += 1
        client = self._client.limited(request.max_tokens, request.stop)
        try:
            answer = await self._asked(client, request, place)
        except (RequestRefusedError, ServerFaultError, TimeoutError, ValueError) as error:
            raise self._refusal(error) from error
        if not len(answer.completion.token_ids):  # the attempt's time ended before its first token
            raise self._refusal(TimeoutError())
        return Reply(request, place, answer, message_of(answer, request.stop))

    async def _asked(self, client: LLMClient, request: ChatRequest, place: Place) -> Answer:
        if place.node is None or self._renders:
            async with client.soft_deadline():  # which the client itself minds where a conversation goes on
                return await client.chat(request.messages, tools=request.tools)
        said = request.messages[place.known - 1]["content"]
        self.counts["trimmed"] += said != place.node.content
        new = request.messages[place.known :]
        return await client.chat(new, after=place.node.answer, tools=request.tools)

    def check(self) -> None:
        """Raises RefusedError if no request is answered any more."""
        if self.stopped.is_set():
            raise RefusedError("the attempt is over", code="overloaded", status=503)
        if len(self.history.nodes) >= MOST_ANSWERS or self._bytes > MOST_BYTES:
            self._stop(AttemptFailedError("session_too_long", "a session holds too many answers"))
            raise RefusedError("this session holds too many answers", code="too_large", status=413)

    def _check_tools(self, request: ChatRequest) -> None:
        if request.tools and not self._tools:
            raise RefusedError(
                "this run's agent has no tools; domain.agent.tools=true shows them to the model",
                "tools",
                "unsupported_parameter",
            )

    def _refusal(self, error: Exception) -> RefusedError:
        """Returns the refusal of a request that ended with this error."""
        if isinstance(error, RequestRefusedError):
            self.counts["too_long" if str(error) == TOO_LONG else "refused"] += 1
            return RefusedError(f"the server refuses the request: {error}", code=str(error))
        if isinstance(error, TimeoutError):
            error = self._cause_of(error)
        if isinstance(error, TimeoutError):
            self.is_out_of_time = True
            self.stopped.set()
            return RefusedError("the attempt's time is over", code="overloaded", status=503)
        if isinstance(error, RequestError):
            self._stop(error)
            return RefusedError("no server answers", code="overloaded", status=503)
        self.counts["refused"] += 1
        return RefusedError(str(error), "messages")

    def _cause_of(self, error: TimeoutError) -> Exception:
        """Returns the fault of a server for which the attempt's time was over, or the error."""
        try:
            if self._client.attempt:
                self._client.attempt.end_completion(error)
        except RequestError as cause:
            return cause
        return error

    def _stop(self, failure: Exception) -> None:
        self.failure = self.failure or failure
        self.stopped.set()

    async def deliver(self, reply: Reply, last_bytes: Callable[[], Awaitable[None]]) -> None:
        """Sends the last bytes of an answer, which is recorded only if they went to an open connection.

        It is recorded first, because the next request may come before the bytes are known to be sent.
        """
        completion = reply.answer.completion
        new = reply.request.messages[0 if self._renders else reply.place.known :]
        held = completion.prompt_token_ids.nbytes + 2 * completion.token_ids.nbytes + ANSWER_BYTES
        held += MESSAGE_BYTES * len(reply.request.messages) + len(json.dumps(new))
        node = self.history.add(reply.place, reply.answer, reply.message, reply.request.max_tokens)
        self._bytes += held
        try:
            await last_bytes()
        except BaseException:
            self.history.remove(node)
            self._bytes -= held
            self.counts["unread"] += len(completion.token_ids)
            raise
        self.counts["answers"] += 1
        self.counts["tokens"] += len(completion.token_ids)

    def trained(self, path_only: bool) -> list[Completion]:
        """Returns the answers to train on: all, or those on the way to the last one, in their order."""
        nodes: list[Node] = self.history.path() if path_only else self.history.nodes
        return [node.answer.completion for node in nodes]

    def metrics(self) -> dict[str, float]:
        return {f"endpoint_{name}": float(count) for name, count in self.counts.items()}

    def is_cut(self) -> bool:
        """Returns True if the run has cut the last answer short, rather than the program's own limit."""
        node = self.history.nodes[-1]
        sampled = len(node.answer.completion.token_ids)
        is_own = node.limit is not None and sampled >= node.limit
        return node.answer.completion.finish_reason == "length" and not is_own

    @property
    def last(self) -> Answer | None:
        nodes = self.history.nodes
        return nodes[-1].answer if nodes else None
