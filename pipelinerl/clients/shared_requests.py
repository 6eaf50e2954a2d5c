"""Merges equal requests to one server into one, of which each caller gets one choice.

Rollouts of a group that start together share a request. Each gets its choice as soon as it is complete.
"""

import asyncio
import copy
import json
from contextlib import aclosing

import aiohttp

from pipelinerl.clients.completions import Asked, complete
from pipelinerl.clients.completions_of_group import complete_each
from pipelinerl.clients.faults import ServerFaultError
from pipelinerl.domains.base import Answer


class SharedRequests:
    """Merges equal requests. All attempts of a process share one object."""

    def __init__(self, session: aiohttp.ClientSession):
        self._session = session
        self._gathering: dict[tuple[str, str], _Shared] = {}

    async def complete(self, url: str, asked: Asked, most: int) -> Answer:
        """Returns one completion, like `completions.complete`. At most `most` callers share a request."""
        key = (url, json.dumps(asked.body(url)))
        shared = self._gathering.get(key)
        if shared is None or shared.joined == most:
            shared = self._gathering[key] = _Shared(self._session, url, asked)
            asyncio.get_running_loop().call_soon(self._send, key, shared)
        return await shared.answer()

    def _send(self, key: tuple[str, str], shared: "_Shared") -> None:
        if self._gathering.get(key) is shared:
            del self._gathering[key]
        shared.send()


class _Shared:
    """A request of several callers, each with its own choice. A cancelled caller affects no other."""

    def __init__(self, session: aiohttp.ClientSession, url: str, asked: Asked):
        self._session = session
        self._url = url
        self._asked = asked
        self._waiting: list[asyncio.Future[Answer]] = []
        self._outstanding = 0  # choices
        self._exchange: asyncio.Task[None] | None = None

    @property
    def joined(self) -> int:
        return len(self._waiting)

    async def answer(self) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        try:
            return await answer
        finally:
            self._waiting.remove(answer)
            if self._exchange and self._outstanding and not self._waiting:
                self._exchange.cancel()

    def send(self) -> None:
        """Starts the HTTP exchange for the callers that have joined."""
        self._outstanding = len(self._waiting)
        if self._waiting:
            self._exchange = asyncio.create_task(self._exchanged(list(self._waiting)))

    async def _exchanged(self, members: list[asyncio.Future[Answer]]) -> None:
        try:
            if len(members) == 1:
                self._deliver(members[0], await complete(self._session, self._url, self._asked))
                return
            choices = complete_each(self._session, self._url, self._asked, len(members))
            async with aclosing(choices):
                async for index, answer in choices:
                    self._deliver(members[index], answer)
        except Exception as error:
            for member in members:
                if not member.done():
                    member.set_exception(copy.copy(error))

    def _deliver(self, member: asyncio.Future[Answer], answer: Answer | ServerFaultError) -> None:
        self._outstanding -= 1
        if member.done():  # the caller was cancelled
            return
        if isinstance(answer, ServerFaultError):
            member.set_exception(answer)
        else:
            member.set_result(answer)
