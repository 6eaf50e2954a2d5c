"""Sends requests to the run's inference servers concurrently, and finds out which are ready.

The servers are read from the launcher's events, also while a request waits. If a server leaves the run, the
requests to it are cancelled.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp

from contracts.inference import ContractInfo
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.clients.server_registry import Joining
from pipelinerl.streams.launched_servers import LaunchedServers

ALIVE_TIMEOUT_S = 2.0  # for an answer that proves that the server is alive
POLL_S = 0.2  # between two reads of the launcher's events during a wait
Result = TypeVar("Result")
Failures = dict[ServerControl, Exception]


@dataclass
class ServerPoll:
    """The result of polling servers. Servers that failed otherwise are in none of the sets."""

    ready: dict[ServerControl, ContractInfo] = field(default_factory=dict)
    loading: set[ServerControl] = field(default_factory=set)
    silent: set[ServerControl] = field(default_factory=set)  # gave no answer in time
    closed: set[ServerControl] = field(default_factory=set)  # refused the connection


class ServerLeftError(Exception):
    """The server, or another one asked together with it, left the run before it answered."""


class Servers:
    """The servers of a run. Each start of a server (`Joining`) has a ServerControl of its own."""

    def __init__(self, launched: LaunchedServers, token: str | None):
        self.launched = launched
        self._loop = asyncio.Runner()
        self._session = self._loop.run(_opened(token))
        self._controls: dict[Joining, ServerControl] = {}
        self._joinings: dict[ServerControl, Joining] = {}
        self.all: list[ServerControl] = []  # the servers of the run, as last read
        self.refresh()

    def refresh(self) -> None:
        self.launched.refresh()
        self.all = [self._control(joining) for joining in self.launched.present]

    @property
    def latest(self) -> list[ServerControl]:
        """The last server of every name, including servers that have left."""
        return [self._control(joining) for joining in self.launched.latest]

    def _control(self, joining: Joining) -> ServerControl:
        if joining not in self._controls:
            control = ServerControl(self._session, joining.url)
            self._controls[joining] = control
            self._joinings[control] = joining
        return self._controls[joining]

    def joining(self, server: ServerControl) -> Joining:
        """Returns name, number and URL of the server. A replacement has the same name and another number."""
        return self._joinings[server]

    def has_one_left(self, servers: Iterable[ServerControl]) -> bool:
        """Returns True if one of these servers has left the run. Thread-safe."""
        self.launched.refresh()
        present = self.launched.present
        return any(self._joinings[server] not in present for server in servers)

    def run(self, work: Awaitable[Result]) -> Result:
        return self._loop.run(work)

    def ask(
        self,
        servers: Iterable[ServerControl],
        question: Callable[[ServerControl], Awaitable[Result]],
        together: bool = False,
    ) -> tuple[dict[ServerControl, Result], Failures]:
        """Asks all servers concurrently. Returns the answers and the failures, by server."""
        return self.run(self.answers(servers, question, together))

    async def answers(
        self,
        servers: Iterable[ServerControl],
        question: Callable[[ServerControl], Awaitable[Result]],
        together: bool = False,
    ) -> tuple[dict[ServerControl, Result], Failures]:
        """Asks all servers, like `ask`. `together`: if one server leaves, cancels all requests."""
        asked = {server: asyncio.ensure_future(question(server)) for server in servers}
        await self._wait_for(asked, together)
        answers: dict[ServerControl, Result] = {}
        failures: Failures = {}
        for server, answer in asked.items():
            if answer.cancelled():
                failures[server] = ServerLeftError(f"{server.url} is not waited for: a server left the run")
            elif error := answer.exception():
                failures[server] = error
            else:
                answers[server] = answer.result()
        return answers, failures

    async def _wait_for(self, asked: dict[ServerControl, asyncio.Future], together: bool) -> None:
        """Waits until each server has answered or failed. Cancels the requests to servers that leave."""
        while pending := [answer for answer in asked.values() if not answer.done()]:
            _, silent = await asyncio.wait(pending, timeout=POLL_S)
            if silent:
                self.refresh()
                gone = asked.keys() - set(self.all)
                for server in asked if gone and together else gone:
                    asked[server].cancel()

    def poll(self, patience_s: dict[ServerControl, float]) -> ServerPoll:
        """Asks each server for its health and its contract. `patience_s`: time limit of each, in seconds."""

        async def ask_one(server: ServerControl) -> tuple[str, ContractInfo | None]:
            async with asyncio.timeout(patience_s[server]):
                status = await server.health_status()
                # While it loads, a server may refuse the request for its contract.
                info = None if status == "loading" else await server.contract(patience_s[server])
                return status, info

        poll = ServerPoll()
        answers, failures = self.ask(patience_s, ask_one)
        poll.silent = {server for server, error in failures.items() if isinstance(error, TimeoutError)}
        poll.closed = {server for server, error in failures.items() if is_refused(error)}
        for server, (status, info) in answers.items():
            if info is None:
                poll.loading.add(server)
            # A server may be unhealthy because its weights are lost, which an update repairs.
            elif status in ("ready", "asleep") or info.weights.state != "live":
                poll.ready[server] = info
        return poll

    def responding(self, servers: Iterable[ServerControl]) -> set[ServerControl]:
        """Returns the servers that answer within `ALIVE_TIMEOUT_S`, whatever status they report."""
        answers, _ = self.ask(
            servers, lambda server: asyncio.wait_for(server.health_status(), ALIVE_TIMEOUT_S)
        )
        return set(answers)

    @staticmethod
    def listening(servers: Iterable[ServerControl]) -> set[ServerControl]:
        """Returns the servers whose port is open, which it is until their process has ended."""
        return {server for server in servers if _is_open(server.url)}

    def close(self) -> None:
        self._loop.run(self._session.close())
        self._loop.close()


def _is_open(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=ALIVE_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # a process that is stopped accepts no more connections, and has its memory
        return True
    return True


def is_refused(error: Exception) -> bool:
    return isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error.os_error, ConnectionRefusedError
    )


async def _opened(token: str | None) -> aiohttp.ClientSession:
    return open_session(token)
