"""The base of publishers that request each version of every server, and wait until the servers serve it."""

from collections.abc import Mapping

from contracts.inference import WeightUpdateStatus
from contracts.records import ServerUpdate, WeightsPublished
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.config import RunConfig
from pipelinerl.training.membership.candidates import Candidates
from pipelinerl.training.membership.servers import Servers
from pipelinerl.training.membership.stranded import Stranded
from pipelinerl.training.membership.strikes import ServerStrikes
from pipelinerl.training.phases import Phases
from pipelinerl.training.publishing.base import PublisherContext, WeightPublisher


class ConfirmingPublisher(WeightPublisher):
    """A publisher to chosen servers. One that fails is left out by `membership.strikes`.

    A subclass sets `run` and writes these methods. In each it calls, in this order:

        open      `_begin(version)`; `_candidates.choose(members)`, which returns the servers that are ready;
                  `_servers.ask(servers, question)`, by which they join: the answers and the failures
        send      `_phases.begin("send")`; `_phases.inside("gather", weights)` around the iterator
        confirm   `_phases.begin("confirm")`; `_servers.ask` for the update and its status;
                  `_strikes.succeeded(live)`; `_stranded.published(live)`; `_publication`
        close     `_servers.close()`

    Failures go to `_candidates.condemn`, which returns those that may pass, and `_strikes.failed`. What that
    returns goes to `_candidates.condemn_failing`, whose message says `_candidates.last_failure`.
    """

    def __init__(self, config: RunConfig, context: PublisherContext):
        self._config = config
        self._servers = Servers(context.launched, context.token)
        self._strikes: ServerStrikes[ServerControl] = ServerStrikes()
        self._candidates = Candidates(
            self._servers, self._strikes, context.needs, config.world, context.record
        )
        self._stranded = Stranded(self._servers, self._candidates)
        self._phases = Phases()

    def pin(self, url: str) -> None:
        """Leaves the server out of publications while another one answers."""
        self._candidates.pinned.add(url)

    def release(self, url: str) -> None:
        self._candidates.pinned.discard(url)

    def wait_for_servers(self) -> None:
        """Waits until every server is ready, or has had enough time."""
        self._candidates.wait()

    def is_stranded(self) -> bool:
        return self._stranded.look()

    def rollouts_come(self) -> None:
        self._stranded.reset()

    def _begin(self, version: int) -> None:
        """Begins the publication of a version: its phases, and which servers are left out of it."""
        self._phases = Phases()
        self._phases.begin("open")
        self._strikes.begin(version)

    def _publication(
        self, version: int, size: int, live: Mapping[ServerControl, WeightUpdateStatus]
    ) -> WeightsPublished:
        """Returns the record of a publication that ends now. size: bytes of the weights.

        live: the servers that serve the version.
        """
        phases = self._phases.seconds()
        return WeightsPublished(
            run=self.run,
            version=version,
            servers=[server.url for server in live],
            joinings=[self._servers.joining(server).number for server in live],
            seconds=sum(phases.values()),
            bytes=size,
            paused_s=max(status.paused_s for status in live.values()),
            phases=phases,
            updates=[
                ServerUpdate(url=server.url, paused_s=status.paused_s, transfer_s=status.transfer_s)
                for server, status in live.items()
            ],
        )
