"""Detects a stranded run: no server of the last publication answers, while another server waits for weights.

No rollout can arrive in such a run, so no step closes, and the other server would never get weights.
"""

from collections.abc import Iterable

from pipelinerl.clients.server_control import ServerControl
from pipelinerl.training.membership.candidates import Candidates
from pipelinerl.training.membership.servers import Servers

SILENT_CHECKS = 5  # checks without an answer after which the servers count as hung


class Stranded:
    """Checks the servers of the last publication."""

    def __init__(self, servers: Servers, candidates: Candidates):
        self._servers = servers
        self._candidates = candidates
        self._published: set[ServerControl] = set()  # servers of the last publication
        self._silent_checks = 0  # checks in a row at which none of them answered

    def published(self, servers: Iterable[ServerControl]) -> None:
        """Records that a version has been published to these servers."""
        self._published = set(servers)
        self.reset()

    def reset(self) -> None:
        self._silent_checks = 0

    def check(self) -> bool:
        """Returns True if the run is stranded.

        The servers of the last publication count as silent after `SILENT_CHECKS` calls in a row without an
        answer.
        """
        self._servers.refresh()
        there = self._published.intersection(self._servers.all)
        if not self._candidates.is_one_ready(besides=there):
            self._silent_checks = 0
            return False
        if there and self._servers.responding(there):
            self._silent_checks = 0
            return False
        self._silent_checks += 1
        return not there or self._silent_checks >= SILENT_CHECKS
