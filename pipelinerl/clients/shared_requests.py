"""Equal requests to one server as one: members of a group that begin together are choices of one exchange.

Each member waits for the next choice that ends, so none waits for the longest. Used by `ServerForms`. Seeded
requests are never equal.
"""

import asyncio
import copy
from contextlib import aclosing

import aiohttp
import msgspec

from pipelinerl.clients.completions import Asked, complete
from pipelinerl.clients.completions_of_group import complete_each
from pipelinerl.domains.base import Answer


class SharedRequests:
    """One object for all attempts of a process."""

    def __init__(self, session: aiohttp.ClientSession):
        self._session = session
        self._gathering: dict[tuple[str, bytes], _Shared] = {}

    async def complete(self, url: str, asked: Asked, most: int) -> Answer:
        """Returns one completion, like `completions.complete`, perhaps of a request that others share.

        most: how many may share it.
        """
        key = (url, msgspec.json.encode(asked.body))
        shared = self._gathering.get(key)
        if shared is None or shared.joined == most:
            shared = self._gathering[key] = _Shared(self._session, url, asked)
            asyncio.get_running_loop().call_soon(self._send, key, shared)
        return await shared.next_answer()

    def _send(self, key: tuple[str, bytes], shared: "_Shared") -> None:
        if self._gathering.get(key) is shared:
            del self._gathering[key]
        shared.send()


class _Shared:
    """One request, and those who wait for its choices."""

    def __init__(self, session: aiohttp.ClientSession, url: str, asked: Asked):
        self._session = session
        self._url = url
        self._asked = asked
        self._waiting: list[asyncio.Future[Answer]] = []
        self._exchange: asyncio.Task[None] | None = None

    @property
    def joined(self) -> int:
        """How many wait for a choice."""
        return len(self._waiting)

    async def next_answer(self) -> Answer:
        """Returns the next choice that nobody else was given."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        try:
            return await answer
        finally:
            if answer in self._waiting:
                self._waiting.remove(answer)
            if self._exchange and not self._waiting:
                self._exchange.cancel()

    def send(self) -> None:
        """Begins the exchange, for those who have joined."""
        if self._waiting:
            self._exchange = asyncio.create_task(self._exchanged(len(self._waiting)))

    async def _exchanged(self, n: int) -> None:
        try:
            if n == 1:
                self._hand_out(await complete(self._session, self._url, self._asked))
                return
            async with aclosing(complete_each(self._session, self._url, self._asked, n)) as answers:
                async for answer in answers:
                    self._hand_out(answer)
        except Exception as error:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_exception(copy.copy(error))

    def _hand_out(self, answer: Answer) -> None:
        """Gives a choice to the first who waits. Whoever left has no use for one."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(answer)
                return
