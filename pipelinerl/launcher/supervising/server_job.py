"""One inference server of a run: its place, its process, its end, and what becomes of it then.

Called by `serving.py`. What is written to `launcher_events` is who is a server; trainer and actor go by that.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from contracts.records import ServerCondemned, ServerJoined, ServerLeft
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
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.supervising.ends import Restarts, in_words, is_alive
from pipelinerl.streams import StreamWriter

SOONER_S = 5.0  # that a server ends before its node does
FINISH_S = 30.0  # for the requests of a server that leaves
SAY_AFTER_S = 10.0  # that a server waits for a place
ASK_EVERY_S = 5.0  # for a place, where none can be had


@dataclass(frozen=True)
class Means:
    """Holds what the jobs of all servers share.

    start: starts the server of this name in a place, and returns its URL and its engine.
    events: the writer of `launcher_events`.
    last_words: returns where the log of a server is, and what it ended with, given its exit status.
    """

    executor: Executor
    start: Callable[[str, Slot], tuple[str, str]]
    events: StreamWriter
    most_restarts: int  # of one server within ten minutes
    count: Callable[[], None]  # is called at each restart
    last_words: Callable[[str, int], str]
    joinings: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # numbers of those to come


class ServerJob:
    """Has a server placed and started, says who it is, and has another started when it ends.

    url: of the process that is a server of the run; None while there is none.
    joining: the number of its joining. answered: whether that process has served weights.
    """

    def __init__(self, want: Want, means: Means, waiting_since: float | None = None):
        self._want = want
        self._means = means
        self._restarts = Restarts(means.most_restarts)
        self._place = ("", "")  # node and engine of its process
        self.url: str | None = None
        self.joining = 0
        self.answered = False
        self.condemned: ServerCondemned | None = None
        self._waiting_since = waiting_since  # for a place
        self._has_said_so = False
        self._excused = False  # whether its end was announced or asked for, and is no failure
        self._ends_at: float | None = None  # when it is asked to end, once it has left

    @property
    def name(self) -> str:
        return self._want.name

    def tend(self, fate: Fate | None, now: float) -> None:
        """Does what its fate asks for. Called a few times a second."""
        match fate:
            case None:
                if self._restarts.is_due(now):
                    self.ask(now)
            case Waiting() if self._waiting_since is not None:
                if now - self._waiting_since > SAY_AFTER_S:
                    self._say_that_it_waits(fate.needs)
            case Placed():
                self._begin(fate.slot)
            case Draining() if self.url:
                self._drain(fate, now)
            case Ended() | Lost():
                self._gone(fate, now)
        if self.condemned and self.url and is_alive(fate):
            self._leave("condemned")
            self._means.executor.end([self.name])
        if self._ends_at and now >= self._ends_at and is_alive(fate):
            self._ends_at = None
            self._means.executor.end([self.name])

    def ask(self, now: float) -> None:
        """Asks for a place. Where there can be none, it is asked for again, as nodes may come."""
        if self._waiting_since is None:
            self._waiting_since = now
        try:
            self._means.executor.ask([self._want])
        except PlanError as error:
            self._restarts.try_again(now + ASK_EVERY_S)
            self._say_that_it_waits(str(error))

    def let_go(self, fate: Fate | None, now: float) -> None:
        """Has it end, once its requests have had time to, and not be started again."""
        self._restarts.give_up()
        if self.url:
            self._leave("asked")
            self._excused = True
            self._ends_at = now + FINISH_S
        elif isinstance(fate, Waiting | Placed):
            self._means.executor.drop([self.name])

    def keep(self, fate: Fate | None, now: float) -> None:
        """Has it started again if it was given up. One that is about to end makes place at once."""
        if not self._restarts.is_spent:
            return
        self._restarts = Restarts(self._means.most_restarts)
        if self._ends_at:
            self._ends_at = now
        elif fate is None:
            self._waiting_since = None
            self._has_said_so = False
            self.ask(now)

    def join_again(self) -> None:
        """Joins once more if it is a server of the run."""
        if self.url:
            self._join()

    def may_serve(self, fate: Fate | None, now: float, longest_wait_s: float) -> bool:
        """Returns whether it is there, or may still come."""
        if is_alive(fate) and self.url:
            return True
        if self._waiting_since is not None and now - self._waiting_since > longest_wait_s:
            return False
        return not self._restarts.is_spent and (fate is not None or self._restarts.is_pending)

    def _say_that_it_waits(self, needs: str) -> None:
        if not self._has_said_so:
            self._has_said_so = True
            say(f"{self.name} waits for a place: {needs}")

    def _begin(self, slot: Slot) -> None:
        self.url, engine = self._means.start(self.name, slot)
        self._place = (slot.node, engine)
        self._waiting_since = None
        self._has_said_so = False
        self._ends_at = None
        self._join()

    def _join(self) -> None:
        node, engine = self._place
        self.joining = next(self._means.joinings)
        said = {"number": self.joining, "name": self.name, "url": self.url}
        self._means.events.append(ServerJoined(**said, node=node, engine=engine))

    def _drain(self, fate: Draining, now: float) -> None:
        self._leave("draining")
        self._excused = True
        self._ends_at = now + min(FINISH_S, fate.deadline - SOONER_S - time.time())
        say(f"{self.name} leaves: its node {fate.slot.node} is about to end")

    def _gone(self, fate: Ended | Lost, now: float) -> None:
        if self.url:
            self._leave("ended" if isinstance(fate, Ended) else "lost")
        self._means.executor.drop([self.name])
        self._ends_at = None
        if self.condemned and not self.condemned.replaceable:
            self._restarts.give_up()
        if not self._restarts.is_spent:
            status = fate.status if isinstance(fate, Ended) else None
            self._restarts.ended(now, status, self._weight)
        if self._restarts.is_pending:
            self._means.count()
        then = "another is started" if self._restarts.is_pending else "it is not started again"
        say(f"{self.name} {self._how_it_ended(fate)}; {then}")
        self.answered = False
        self.condemned = None
        self._excused = False

    def _how_it_ended(self, fate: Ended | Lost) -> str:
        if self._excused:
            return "has ended, as it was to"
        if isinstance(fate, Lost):
            return f"is lost: {fate.why}"
        how = f"was ended: {self.condemned.why}" if self.condemned else in_words(fate.status)
        return f"{how}; {self._means.last_words(self.name, fate.status)}"

    @property
    def _weight(self) -> int:
        """How much its end counts: nothing where it was announced or asked for."""
        if self._excused:
            return 0
        return 1 if self.answered else 2

    def _leave(self, why: str) -> None:
        self._means.events.append(ServerLeft(name=self.name, url=self.url, why=why))
        self.url = None
