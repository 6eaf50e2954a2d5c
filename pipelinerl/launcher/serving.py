"""The inference servers of a run: started, told of, ended and replaced, as long as the budget of each lasts.

The supervisor calls `tend` a few times a second. What is written to `launcher_events` is who is a server;
trainer and actor go by that.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from contracts.records import ServerCondemned, ServerJoined, ServerLeft, WeightsPublished
from pipelinerl.config import WorldConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import (
    Draining,
    Ended,
    Executor,
    Fate,
    Lost,
    Placed,
    Slot,
    Waiting,
    Want,
)
from pipelinerl.launcher.fates import is_alive
from pipelinerl.launcher.restarts import Restarts, of_a_server
from pipelinerl.launcher.trainer_news import TrainerNews
from pipelinerl.streams import StreamWriter

SOONER_S = 5.0  # that a server ends before its node does
FINISH_S = 30.0  # for the requests of a server that is not wanted any more


@dataclass
class _Server:
    want: Want
    restarts: Restarts
    url: str | None = None  # of the process that is a server of the run
    answered: bool = False  # whether that one has served weights
    condemned: ServerCondemned | None = None
    waiting_since: float = 0.0  # for a place
    drained: bool = False  # whether its node's end was announced
    ends_at: float | None = None  # when it ends, if it is not wanted any more


class Servers:
    """start: starts the server of this name in a place, and returns its URL and its engine.
    events: the writer of `launcher_events`.
    """

    def __init__(
        self,
        wants: Iterable[Want],
        executor: Executor,
        start: Callable[[str, Slot], tuple[str, str]],
        events: StreamWriter,
        news: TrainerNews,
        world: WorldConfig,
    ):
        began = time.monotonic()
        self._most_restarts = world.server_restarts
        self._servers = {
            want.name: _Server(want, of_a_server(world.server_restarts), waiting_since=began)
            for want in wants
        }
        self._executor = executor
        self._start = start
        self._events = events
        self._news = news
        self._longest_wait_s = world.server_start_timeout_s

    def tend(self, fates: Mapping[str, Fate], now: float) -> None:
        """Does what the fates of the servers ask for."""
        self._hear_trainer()
        for name, server in self._servers.items():
            fate = fates.get(name)
            match fate:
                case None:
                    if server.restarts.is_due(now):
                        self._ask(name, server, now)
                case Placed():
                    self._begin(name, server, fate.slot)
                case Draining():
                    self._drain(name, server, fate)
                case Ended() | Lost():
                    self._gone(name, server, fate, now)
            if server.condemned and server.url and is_alive(fate):
                self._leave(name, server, "condemned")
                self._executor.end([name])
            if server.ends_at and now > server.ends_at:
                server.ends_at = None
                self._executor.end([name])

    def scale(self, wants: Iterable[Want], fates: Mapping[str, Fate], now: float) -> None:
        """Starts the servers that are missing, and ends those that are not among `wants`."""
        wanted = {want.name: want for want in wants}
        for name, server in self._servers.items():
            if name in wanted:
                continue
            server.restarts.give_up()
            if server.url:
                self._leave(name, server, "asked")
                server.ends_at = now + FINISH_S
            elif isinstance(fates.get(name), Waiting | Placed):
                self._executor.drop([name])
        for name, want in wanted.items():
            server = self._servers.setdefault(name, _Server(want, of_a_server(self._most_restarts)))
            if server.restarts.is_spent:
                server.restarts = of_a_server(self._most_restarts)
            if fates.get(name) is None and not server.restarts.is_pending:
                self._ask(name, server, now)

    def may_serve(self, fates: Mapping[str, Fate], now: float) -> bool:
        """Returns whether a server is there, or may still come."""
        return any(self._may_serve(server, fates.get(name), now) for name, server in self._servers.items())

    def _may_serve(self, server: _Server, fate: Fate | None, now: float) -> bool:
        if isinstance(fate, Waiting):
            return now - server.waiting_since < self._longest_wait_s
        if is_alive(fate):
            return bool(server.url) or not server.restarts.is_spent
        return server.restarts.is_pending or isinstance(fate, Placed)

    # --- what becomes of one ------------------------------------------------------------------

    def _ask(self, name: str, server: _Server, now: float) -> None:
        server.waiting_since = now
        try:
            self._executor.ask([server.want])
        except PlanError as error:
            server.restarts.ended(now)
            say(f"{name} is not started again: {error}")

    def _begin(self, name: str, server: _Server, slot: Slot) -> None:
        server.url, engine = self._start(name, slot)
        server.answered = False
        server.condemned = None
        server.drained = False
        server.ends_at = None
        self._events.append(ServerJoined(name=name, url=server.url, node=slot.node, engine=engine))

    def _drain(self, name: str, server: _Server, fate: Draining) -> None:
        if server.url:
            self._leave(name, server, "draining")
            server.drained = True
            say(f"{name} leaves: its node {fate.slot.node} is about to end")
        if time.time() > fate.deadline - SOONER_S:
            self._executor.end([name])

    def _gone(self, name: str, server: _Server, fate: Ended | Lost, now: float) -> None:
        if server.url:
            self._leave(name, server, "ended" if isinstance(fate, Ended) else "lost")
        self._executor.drop([name])
        if server.condemned and not server.condemned.replaceable:
            server.restarts.give_up()
        if not server.restarts.is_spent:
            status = fate.status if isinstance(fate, Ended) else None
            server.restarts.ended(now, status, _weight(server))
        how = f"ended with status {fate.status}" if isinstance(fate, Ended) else f"is lost: {fate.why}"
        then = "another is started" if server.restarts.is_pending else "it is not started again"
        say(f"{name} {how}; {then}")

    def _leave(self, name: str, server: _Server, why: str) -> None:
        self._events.append(ServerLeft(name=name, url=server.url, why=why))
        server.url = None

    def _hear_trainer(self) -> None:
        by_url = {server.url: server for server in self._servers.values() if server.url}
        for record in self._news.read():
            match record:
                case WeightsPublished(servers=urls):
                    for url in by_url.keys() & set(urls):
                        by_url[url].answered = True
                case ServerCondemned(url=url) if url in by_url:
                    by_url[url].condemned = record


def _weight(server: _Server) -> int:
    """Returns how much the end of a server counts: nothing where its node is to blame by its own word."""
    if server.drained:
        return 0
    return 1 if server.answered else 2


def say(line: str) -> None:
    print(f"launch.py: {line}", file=sys.stderr, flush=True)
