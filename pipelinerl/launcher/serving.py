"""The inference servers of a run: started, told of, ended and replaced, as long as the budget of each lasts.

The supervisor calls `tend` a few times a second. What is written to `launcher_events` is who is a server;
trainer and actor go by that.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.restarts import Restarts, of_a_server
from pipelinerl.launcher.trainer_news import TrainerNews
from pipelinerl.streams import StreamWriter

SOONER_S = 5.0  # that a server ends before its node does
FINISH_S = 30.0  # for the requests of a server that leaves
SAY_AFTER_S = 10.0  # that a server waits for a place
ASK_EVERY_S = 5.0  # for a place, where none can be had


@dataclass
class _Server:
    want: Want
    restarts: Restarts
    url: str | None = None  # of the process that is a server of the run
    joining: int = 0  # number of its joining
    answered: bool = False  # whether that one has served weights
    condemned: ServerCondemned | None = None
    waiting_since: float | None = None  # for a place
    said_waiting: bool = False
    excused: bool = False  # whether its end was announced or asked for, and is no failure
    ends_at: float | None = None  # when it is asked to end, once it has left


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
        self._most_restarts = world.server_restarts
        self._servers = {
            want.name: _Server(want, of_a_server(world.server_restarts), waiting_since=time.monotonic())
            for want in wants
        }
        self._joinings = itertools.count(1)
        self._executor = executor
        self._start = start
        self._events = events
        self._news = news
        self._longest_wait_s = world.server_start_timeout_s
        self.refusal: str | None = None  # why the trainer condemned a server last
        self.ended_last = next(iter(self._servers))

    def tend(self, fates: Mapping[str, Fate], now: float) -> None:
        """Does what the fates of the servers ask for."""
        self._hear_trainer()
        for name, server in self._servers.items():
            fate = fates.get(name)
            match fate:
                case None:
                    if server.restarts.is_due(now):
                        self._ask(name, server, now)
                case Waiting() if server.waiting_since is not None:
                    if now - server.waiting_since > SAY_AFTER_S:
                        self._say_waiting(name, server, fate.needs)
                case Placed():
                    self._begin(name, server, fate.slot)
                case Draining() if server.url:
                    self._drain(name, server, fate, now)
                case Ended() | Lost():
                    self._gone(name, server, fate, now)
            if server.condemned and server.url and is_alive(fate):
                self._leave(name, server, "condemned")
                self._executor.end([name])
            if server.ends_at and now >= server.ends_at and is_alive(fate):
                server.ends_at = None
                self._executor.end([name])

    def scale(self, wants: Sequence[Want], fates: Mapping[str, Fate], now: float) -> None:
        """Starts servers that are missing, or ends those beyond the number of `wants`.

        Those that do not serve are ended first.
        """
        kept = sorted(self._servers, key=lambda name: not self._servers[name].url)[: len(wants)]
        for name in self._servers.keys() - kept:
            self._let_go(name, fates.get(name), now)
        for name in kept:
            self._keep(name, fates.get(name), now)
        for want in wants:
            if len(kept) < len(wants) and want.name not in self._servers:
                self._servers[want.name] = _Server(want, of_a_server(self._most_restarts))
                kept.append(want.name)
                self._ask(want.name, self._servers[want.name], now)

    def _let_go(self, name: str, fate: Fate | None, now: float) -> None:
        server = self._servers[name]
        server.restarts.give_up()
        if server.url:
            self._leave(name, server, "asked")
            server.excused = True
            server.ends_at = now + FINISH_S
        elif isinstance(fate, Waiting | Placed):
            self._executor.drop([name])

    def _keep(self, name: str, fate: Fate | None, now: float) -> None:
        """Has a server that was given up started again. One that is about to end makes place at once."""
        server = self._servers[name]
        if not server.restarts.is_spent:
            return
        server.restarts = of_a_server(self._most_restarts)
        if server.ends_at:
            server.ends_at = now
        elif fate is None:
            server.waiting_since = None
            server.said_waiting = False
            self._ask(name, server, now)

    def serving(self, fates: Mapping[str, Fate]) -> int:
        """Returns the number of servers of the run that are alive."""
        return sum(bool(server.url) and is_alive(fates.get(name)) for name, server in self._servers.items())

    def may_serve(self, fates: Mapping[str, Fate], now: float) -> bool:
        """Returns whether a server is there, or may still come."""
        return any(self._may_serve(server, fates.get(name), now) for name, server in self._servers.items())

    def _may_serve(self, server: _Server, fate: Fate | None, now: float) -> bool:
        if is_alive(fate) and server.url:
            return True
        if server.waiting_since is not None and now - server.waiting_since > self._longest_wait_s:
            return False
        return not server.restarts.is_spent and (fate is not None or server.restarts.is_pending)

    # --- what becomes of one ------------------------------------------------------------------

    def _ask(self, name: str, server: _Server, now: float) -> None:
        """Asks for a place. Where there can be none, it is asked for again, as nodes may come."""
        if server.waiting_since is None:
            server.waiting_since = now
        try:
            self._executor.ask([server.want])
        except PlanError as error:
            server.restarts.try_again(now + ASK_EVERY_S)
            self._say_waiting(name, server, str(error))

    def _say_waiting(self, name: str, server: _Server, needs: str) -> None:
        if not server.said_waiting:
            server.said_waiting = True
            say(f"{name} waits for a place: {needs}")

    def _begin(self, name: str, server: _Server, slot: Slot) -> None:
        server.url, engine = self._start(name, slot)
        server.joining = next(self._joinings)
        server.waiting_since = None
        server.said_waiting = False
        server.ends_at = None
        joined = ServerJoined(number=server.joining, name=name, url=server.url, node=slot.node, engine=engine)
        self._events.append(joined)

    def _drain(self, name: str, server: _Server, fate: Draining, now: float) -> None:
        self._leave(name, server, "draining")
        server.excused = True
        server.ends_at = now + min(FINISH_S, fate.deadline - SOONER_S - time.time())
        say(f"{name} leaves: its node {fate.slot.node} is about to end")

    def _gone(self, name: str, server: _Server, fate: Ended | Lost, now: float) -> None:
        if server.url:
            self._leave(name, server, "ended" if isinstance(fate, Ended) else "lost")
        self._executor.drop([name])
        self.ended_last = name
        server.ends_at = None
        if server.condemned and not server.condemned.replaceable:
            server.restarts.give_up()
        if not server.restarts.is_spent:
            status = fate.status if isinstance(fate, Ended) else None
            server.restarts.ended(now, status, _weight(server))
        why = f" ({server.condemned.why})" if server.condemned else ""
        how = f"ended with status {fate.status}" if isinstance(fate, Ended) else f"is lost: {fate.why}"
        if server.excused:
            how = "has ended, as it was to"
        then = "another is started" if server.restarts.is_pending else "it is not started again"
        say(f"{name} {how}{why}; {then}")
        server.answered = False
        server.condemned = None
        server.excused = False

    def _leave(self, name: str, server: _Server, why: str) -> None:
        self._events.append(ServerLeft(name=name, url=server.url, why=why))
        server.url = None

    def _hear_trainer(self) -> None:
        by_joining = {server.joining: server for server in self._servers.values() if server.url}
        for record in self._news.read():
            match record:
                case WeightsPublished(joinings=joinings):
                    for joining in by_joining.keys() & set(joinings):
                        by_joining[joining].answered = True
                case ServerCondemned(joining=joining) if joining in by_joining:
                    by_joining[joining].condemned = record
                    self.refusal = record.why


def _weight(server: _Server) -> int:
    """Returns how much the end of a server counts: nothing where it was announced or asked for."""
    if server.excused:
        return 0
    return 1 if server.answered else 2
