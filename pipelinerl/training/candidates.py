"""Which servers the next weight group is formed of: who is there, not pinned, and not refused for good."""

import logging
import time
from collections.abc import Iterable, Mapping

from contracts.inference import ContractInfo
from pipelinerl.clients.server_control import ANSWER_TIMEOUT_S, ContractRefusalError, ServerControl
from pipelinerl.training.server_strikes import ServerStrikes
from pipelinerl.training.servers import Failures, Servers

log = logging.getLogger(__name__)
OUTSIDER_TIMEOUT_S = 1.0  # for a server outside the group to say that it is there
POLL_S = 0.2  # between two looks at servers that are loading
Infos = dict[ServerControl, ContractInfo]


class NoServersError(Exception):
    """No inference server is left to publish to."""


class Candidates:
    def __init__(
        self,
        servers: Servers,
        strikes: ServerStrikes[ServerControl],
        needs: Mapping[str, str],
        start_timeout_s: float,
    ):
        """`needs`: capabilities that every server must have, and what asks for each."""
        self._servers = servers
        self._strikes = strikes
        self._needs = needs
        self._start_timeout_s = start_timeout_s
        self._condemned: dict[ServerControl, Exception] = {}  # what no new epoch can mend
        self.pinned: set[str] = set()  # URLs of servers that are to keep what they serve
        self.last_failure: str | None = None  # of an update, as a server told it

    def wait(self) -> None:
        """Waits until every server is ready, or the time is over, and names those that are not."""
        deadline = time.monotonic() + self._start_timeout_s
        everyone = dict.fromkeys(self._servers.all, ANSWER_TIMEOUT_S)
        while missing := everyone.keys() - self._servers.roll(everyone).ready.keys():
            if time.monotonic() > deadline:
                urls = ", ".join(sorted(s.url for s in missing))
                log.warning("no answer within server_start_timeout_s from %s", urls)
                return
            time.sleep(POLL_S)

    def choose(self, members: Iterable[ServerControl]) -> Infos:
        """Returns the next group's servers. A pinned one is among them only when there is no other.

        members: those of the last group. Raises NoServersError, or the refusal where all refused for good.
        """
        asked = [s for s in self._servers.all if s not in self._condemned]
        if infos := self._chosen([s for s in asked if s.url not in self.pinned], members):
            return infos
        if pinned := [s for s in asked if s.url in self.pinned]:
            log.warning("no other server answers: %s is taken back in", ", ".join(s.url for s in pinned))
            if infos := self._chosen(pinned, pinned):
                return infos
        raise self._nobody()

    def condemn(self, failures: Failures) -> Failures:
        """Asks those no more that refused for good. Returns the failures of the others."""
        for server, failure in failures.items():
            if _is_hopeless(failure):
                log.error("%s is left out for the rest of this run: %s", server.url, failure)
                self._condemned[server] = failure
        return {s: f for s, f in failures.items() if s not in self._condemned}

    def _chosen(self, servers: list[ServerControl], members: Iterable[ServerControl]) -> Infos:
        """Those of them that are to be published to; waits while there are none but some are loading."""
        # One that is out already, and hangs, must not hold up every publication.
        patience = {s: ANSWER_TIMEOUT_S if s in members else OUTSIDER_TIMEOUT_S for s in servers}
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            roll = self._servers.roll(patience)
            lacking = {s: f for s, info in roll.ready.items() if (f := self._lacking(s, info))}
            self.condemn(lacking)
            chosen = self._strikes.choose([s for s in servers if s in roll.ready and s not in lacking])
            if chosen or not roll.loading or time.monotonic() > deadline:
                return {server: roll.ready[server] for server in chosen}
            time.sleep(POLL_S)

    def _lacking(self, server: ServerControl, info: ContractInfo) -> ValueError | None:
        for capability, why in self._needs.items():
            if capability not in info.capabilities:
                return ValueError(
                    f"{why}: {server.url} ({info.engine}) does not declare the capability {capability}"
                )
        return None

    def _nobody(self) -> Exception:
        refusals = list(self._condemned.values())
        if len(refusals) == len(self._servers.all):
            return refusals[0]
        others = "".join(f"; {refusal}" for refusal in refusals)
        if self._strikes.troubled:
            last = f", the last of them at {self.last_failure}" if self.last_failure else ""
            return NoServersError(
                f"the weight groups of every server failed{last}; see the servers' logs{others}"
            )
        return NoServersError(f"no inference server answers and is ready{others}")


def _is_hopeless(failure: Exception) -> bool:
    """Whether no new epoch can mend it.

    The weights do not fit, another run took the server over, or it lacks a capability.
    """
    if isinstance(failure, ContractRefusalError):
        return failure.status == 422 or failure.code == "other_run"
    return isinstance(failure, ValueError)
