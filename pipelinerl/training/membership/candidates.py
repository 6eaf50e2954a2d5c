"""Candidates: the servers that answer as ready, are not pinned, and are not condemned.

A pinned server keeps its weights for the actor. A condemned one gets no more updates: the launcher ends it.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from contracts.inference import ContractInfo
from contracts.records import ServerCondemned
from pipelinerl.clients.server_control import ANSWER_TIMEOUT_S, ContractRefusalError, ServerControl
from pipelinerl.config import WorldConfig
from pipelinerl.training.membership.servers import Failures, ServerLeftError, ServerPoll, Servers, is_refused
from pipelinerl.training.membership.silent_servers import SilentServers
from pipelinerl.training.membership.strikes import ServerStrikes

log = logging.getLogger(__name__)
MEMBER_TIMEOUT_S = 5.0  # for an answer of a member of the last group; if it hangs, it delays training once
OUTSIDER_TIMEOUT_S = 1.0  # for an answer of a server outside the group
FIRST_PAUSE_S = 1.0  # before a silent server is asked again
LONGEST_PAUSE_S = 32.0
REFUSALS = 10  # connections refused in a row after which the port of a server is closed
POLL_S = 0.2  # between two polls of servers that are loading
SAY_EVERY_S = 10.0  # between two log messages about a wait for servers
Infos = dict[ServerControl, ContractInfo]


class LacksCapabilityError(ValueError):
    """A server cannot do what a setting of the run needs."""


class NoServersError(Exception):
    """No inference server is left to publish to."""


class Candidates:
    def __init__(
        self,
        servers: Servers,
        strikes: ServerStrikes[ServerControl],
        needs: Mapping[str, str],
        world: WorldConfig,
        record: Callable[[ServerCondemned], object],
    ):
        """`needs`: capabilities that every server must declare, each with the setting that needs it.
        `record`: appends `ServerCondemned` to the trainer's events: the launcher ends the server."""
        self._servers = servers
        self._strikes = strikes
        self._needs = needs
        self._start_timeout_s = world.server_start_timeout_s
        self._grace_s = world.server_grace_s
        self._record = record
        self._asked_since: dict[ServerControl, float] = {}  # time of the first answer that it was not ready
        self._silent: SilentServers[ServerControl] = SilentServers(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._answered: set[ServerControl] = set()  # servers that have been ready once
        self._refusals: Counter[ServerControl] = Counter()  # connections that they refused in a row
        self._absent: set[ServerControl] = set()  # condemned: not ready or asleep in time, or port closed
        self._absent_at = -math.inf  # time when a server was last condemned for that
        self._refused: dict[ServerControl, Exception] = {}  # failures for which no retry helps
        self._failing: dict[ServerControl, int] = {}  # servers to replace -> version that failed
        self.pinned: set[str] = set()  # URLs of servers that must keep their weights
        self.last_failure: str | None = None  # error of an update, as a server reported it

    def wait(self) -> None:
        """Waits until every server is ready, or the time limit has passed. Logs the missing servers.

        Once a server is ready, the others get as much time again, and at least the grace period. Servers that
        become ready later join at a later publication.
        """
        began = time.monotonic()
        grace_ends = math.inf
        while True:
            everyone = self.current()
            ready = self._poll(dict.fromkeys(everyone, OUTSIDER_TIMEOUT_S)).ready
            missing = [server for server in everyone if server not in ready]
            if ready and not missing:
                return
            now = time.monotonic()
            if ready:
                grace_ends = min(grace_ends, now + max(now - began, self._grace_s))
            if now > grace_ends or self._has_waited_long(began):
                urls = ", ".join(sorted(s.url for s in missing)) or "any server"
                log.warning("the run begins without %s, not ready yet", urls)
                return
            time.sleep(POLL_S)

    def choose(self, members: Collection[ServerControl]) -> Infos:
        """Returns the servers for the next publication. Pinned servers are chosen if there are no others.

        Waits if there is none, because the launcher replaces servers that end or are condemned.

        members: servers of the last publication.

        Raises NoServersError. If every server has refused permanently, raises the first refusal.
        """
        began = said = time.monotonic()
        has_condemned = False
        while not (infos := self._chosen(members)):
            latest = self._servers.latest
            if latest and all(server in self._refused for server in latest):
                raise self._refused[latest[0]]
            if self._has_waited_long(began):
                self._condemn_silent(again=has_condemned)
                has_condemned = True
            if time.monotonic() > said + SAY_EVERY_S:
                said = time.monotonic()
                log.warning("waiting for a server to publish to, for %.0f s", said - began)
            time.sleep(POLL_S)
        return infos

    def is_one_ready(self, besides: Collection[ServerControl]) -> bool:
        """Returns whether a server other than `besides` is ready for a publication."""
        now = time.monotonic()
        others = [s for s in self.current() if s not in besides and self._silent.is_due(s, now)]
        return bool(others and self._poll(dict.fromkeys(others, OUTSIDER_TIMEOUT_S)).ready)

    def condemn(self, failures: Failures) -> Failures:
        """Condemns the servers that refused permanently. Returns the failures of the others."""
        for server, failure in failures.items():
            if is_hopeless(failure):
                log.error("%s is left out for the rest of this run: %s", server.url, failure)
                self._refused[server] = failure
                self._record_condemned(server, str(failure), replaceable=False)
        return {s: f for s, f in failures.items() if s not in self._refused}

    def condemn_failing(self, servers: Iterable[ServerControl]) -> None:
        """Condemns the servers that failed update after update. The launcher replaces them.

        Raises NoServersError if a version fails at a server and also at its replacement.
        """
        for server in filter(self._strikes.is_hopeless, servers):
            name = self._servers.joining(server).name
            version = self._strikes.version
            if any(self._servers.joining(s).name == name and v == version for s, v in self._failing.items()):
                raise self._no_servers_error()
            last = f"; the last failure was at {self.last_failure}" if self.last_failure else ""
            log.error("%s is condemned, because it failed update after update%s", server.url, last)
            self._failing[server] = version
            self._record_condemned(server, f"it failed update after update{last}", replaceable=True)

    def condemn_awake(self, failures: Failures) -> None:
        """Condemns the servers that did not fall asleep, unless they are gone. The launcher replaces them."""
        for server, failure in failures.items():
            if not (isinstance(failure, ServerLeftError) or is_refused(failure)):
                why = str(failure) or type(failure).__name__
                log.error("%s is condemned, because it does not sleep: %s", server.url, why)
                self._absent.add(server)
                self._record_condemned(server, f"it does not sleep: {why}", replaceable=True)

    def _poll(self, patience_s: dict[ServerControl, float]) -> ServerPoll:
        """Polls the servers. Notes since when servers are not ready, and which are silent or refuse."""
        now = time.monotonic()
        for server in patience_s:
            self._asked_since.setdefault(server, now)
        poll = self._servers.poll(patience_s)
        for server in poll.ready:
            del self._asked_since[server]
        self._silent.observe(patience_s, poll.silent, time.monotonic())
        self._answered |= poll.ready.keys()
        for server in patience_s:
            refuses = server in poll.closed and server in self._answered
            self._refusals[server] = self._refusals[server] + 1 if refuses else 0
        return poll

    def _is_late(self, server: ServerControl) -> bool:
        """Returns True if the server was not ready for longer than it may take to start."""
        asked_since = self._asked_since.get(server, math.inf)
        return time.monotonic() - asked_since > self._start_timeout_s

    def _condemn_late(self, servers: Iterable[ServerControl]) -> None:
        self._condemn_absent(
            servers, f"it was not ready within server_start_timeout_s={self._start_timeout_s:g} s"
        )

    def _condemn_closed(self, servers: Iterable[ServerControl]) -> None:
        """Condemns servers that were ready before and refuse connections now: their port is closed."""
        closed = [server for server in servers if self._refusals[server] >= REFUSALS]
        self._condemn_absent(closed, f"its port is closed: it refused {REFUSALS} connections in a row")

    def _condemn_absent(self, servers: Iterable[ServerControl], why: str) -> None:
        for server in servers:
            log.error("%s is condemned: %s", server.url, why)
            self._absent.add(server)
            self._absent_at = time.monotonic()
            self._record_condemned(server, why, replaceable=True)

    def _condemn_silent(self, again: bool) -> None:
        """Condemns all present servers, so that the launcher replaces them.

        Raises NoServersError if there is none, or if the replacements are silent too.
        """
        silent = self.current()
        if again or not silent:
            raise self._no_servers_error()
        self._condemn_late(silent)

    def _record_condemned(self, server: ServerControl, why: str, replaceable: bool) -> None:
        joining = self._servers.joining(server).number
        self._record(ServerCondemned(joining=joining, url=server.url, why=why, replaceable=replaceable))

    def current(self) -> list[ServerControl]:
        """Returns the run's current servers, except condemned ones."""
        self._servers.refresh()
        self.pinned &= {server.url for server in self._servers.all}
        condemned = self._refused.keys() | self._failing.keys() | self._absent
        return [s for s in self._servers.all if s not in condemned]

    def _chosen(self, members: Collection[ServerControl]) -> Infos:
        """Returns the servers to publish to, which may be none.

        Raises NoServersError if all present servers have failed at this version.
        """
        servers = self.current()
        free = [s for s in servers if s.url not in self.pinned]
        poll, infos = self._ready(free, members)
        pinned = [s for s in servers if s.url in self.pinned]
        if not infos and not poll.loading and pinned:
            poll, infos = self._ready(pinned, pinned)
            if infos:
                log.warning("no other server answers: %s is taken back in", ", ".join(s.url for s in pinned))
        if poll.ready and not infos and not poll.loading:
            raise self._no_servers_error()
        if not infos:
            self._silent.forget()
        return infos

    def _ready(
        self, servers: list[ServerControl], members: Collection[ServerControl]
    ) -> tuple[ServerPoll, Infos]:
        """Polls the servers. Returns the result, and the contracts of the servers that `strikes` chooses."""
        # A server outside the group that hangs must not delay every publication.
        late = {s for s in servers if self._is_late(s)}
        now = time.monotonic()
        patience = dict.fromkeys((s for s in servers if s in members), MEMBER_TIMEOUT_S)
        patience |= dict.fromkeys(late, ANSWER_TIMEOUT_S)
        outsiders = (s for s in servers if s not in patience and self._silent.is_due(s, now))
        patience |= dict.fromkeys(outsiders, OUTSIDER_TIMEOUT_S)
        poll = self._poll(patience)
        self._condemn_late(late - poll.ready.keys())
        self._condemn_closed(set(servers) - late)
        poll.loading -= late
        unfit = {s: f for s, info in poll.ready.items() if (f := lacking(s.url, info, self._needs))}
        self.condemn(unfit)
        poll.ready = {s: info for s, info in poll.ready.items() if s not in unfit}
        chosen = self._strikes.choose([s for s in servers if s in poll.ready])
        return poll, {server: poll.ready[server] for server in chosen}

    def _has_waited_long(self, began: float) -> bool:
        """Returns True if the wait has exceeded the time to start since the last change of servers."""
        since = max(began, self._servers.launched.changed_at, self._absent_at)
        return time.monotonic() > since + self._start_timeout_s

    def _no_servers_error(self) -> Exception:
        others = "".join(f"; {refusal}" for refusal in self._refused.values())
        if self._strikes.troubled:
            last = f", the last of them at {self.last_failure}" if self.last_failure else ""
            return NoServersError(
                f"the weight groups of every server failed{last}; see the servers' logs{others}"
            )
        return NoServersError(f"no inference server answers and is ready{others}")


def lacking(url: str, info: ContractInfo, needs: Mapping[str, str]) -> LacksCapabilityError | None:
    """Returns an error that names the first capability which the server does not declare, or None."""
    for capability, why in needs.items():
        if capability not in info.capabilities:
            return LacksCapabilityError(
                f"{why}: {url} ({info.engine}) does not declare the capability {capability}"
            )
    return None


def is_hopeless(failure: Exception) -> bool:
    """Returns whether the failure would recur in every epoch.

    The weights do not fit, another run took over the server, or it lacks a capability.
    """
    if isinstance(failure, ContractRefusalError):
        return failure.status == 422 or failure.code == "other_run"
    return isinstance(failure, ValueError)
