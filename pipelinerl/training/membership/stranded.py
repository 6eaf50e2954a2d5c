"""A run is stranded if the servers of its last publication are gone, while another one waits for weights."""

from collections.abc import Iterable

from pipelinerl.clients.server_control import ServerControl
from pipelinerl.training.membership.candidates import Candidates
from pipelinerl.training.membership.servers import Servers

SILENT_LOOKS = 5  # checks without an answer after which servers are taken to hang


class Stranded:
    """Looks whether the last publication has left the run without a server that answers."""

    def __init__(self, servers: Servers, candidates: Candidates):
        self._servers = servers
        self._candidates = candidates
        self._published: set[ServerControl] = set()  # servers of the last publication
        self._silent_looks = 0  # checks in a row at which none of them answered

    def published(self, servers: Iterable[ServerControl]) -> None:
        """Records that a version has been published to these servers."""
        self._published = set(servers)
        self.reset()

    def reset(self) -> None:
        """Records that the servers are not silent."""
        self._silent_looks = 0

    def look(self) -> bool:
        """Returns whether every server of the last publication is gone or silent, and another one is ready.

        Then no rollout can come, so no step closes, and the new server would never get weights. Servers count
        as silent after `SILENT_LOOKS` calls in a row without an answer.
        """
        self._servers.refresh()
        there = self._published.intersection(self._servers.all)
        if not self._candidates.is_one_ready(besides=there):
            self._silent_looks = 0
            return False
        if there and self._servers.hear(there):
            self._silent_looks = 0
            return False
        self._silent_looks += 1
        return not there or self._silent_looks >= SILENT_LOOKS
