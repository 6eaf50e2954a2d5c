"""The base class of publishers that request each version of every server and wait until it is served."""

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
    """A publisher that leaves failing servers out of its next publications (`membership.strikes`).

    A subclass sets `run` and writes these methods, each with these calls:

        open      self.begin(version)
                  members = self.candidates.choose(members)            # ready servers; waits for one
                  answers, failures = self.servers.ask(members, join)  # by server
        send      self.phases.begin("send")
                  weights = self.phases.inside("gather", weights)      # before it reads the first weight
        confirm   self.phases.begin("confirm")
                  live, failures = self.servers.ask(members, update)   # live: statuses by server
                  self.strikes.succeeded(live)
                  self.stranded.published(live)
                  return self.publication(version, size, live)
        close     self.servers.close()

    It handles the failures of `ask` like this:

        retryable = self.candidates.condemn(failures)      # condemns servers that refused permanently
        out = self.strikes.failed(Blame(frozenset(retryable), certain=True))
        self.candidates.condemn_failing(out)               # condemns servers that fail update after update

    `candidates.last_failure` is a text that later error messages repeat.
    """

    def __init__(self, config: RunConfig, context: PublisherContext):
        self._config = config
        self.servers = Servers(context.launched, context.token)
        self.strikes: ServerStrikes[ServerControl] = ServerStrikes()
        self.candidates = Candidates(self.servers, self.strikes, context.needs, config.world, context.record)
        self.stranded = Stranded(self.servers, self.candidates)
        self.phases = Phases()

    def pin(self, url: str) -> None:
        """Leaves the server out of publications while another one answers."""
        self.candidates.pinned.add(url)

    def release(self, url: str) -> None:
        self.candidates.pinned.discard(url)

    def wait_for_servers(self) -> None:
        self.candidates.wait()

    def is_stranded(self) -> bool:
        return self.stranded.check()

    def rollouts_come(self) -> None:
        self.stranded.reset()

    def begin(self, version: int) -> None:
        """Begins the publication of a version, or tries it again."""
        self.phases = Phases()
        self.phases.begin("open")
        self.strikes.begin(version)

    def publication(
        self, version: int, size: int, live: Mapping[ServerControl, WeightUpdateStatus]
    ) -> WeightsPublished:
        """Returns the record of a publication that ends now. size: bytes of the weights.

        live: the servers that serve the version.
        """
        phases = self.phases.seconds()
        return WeightsPublished(
            run=self.run,
            version=version,
            servers=[server.url for server in live],
            joinings=[self.servers.joining(server).number for server in live],
            seconds=sum(phases.values()),
            bytes=size,
            paused_s=max(status.paused_s for status in live.values()),
            phases=phases,
            updates=[
                ServerUpdate(url=server.url, paused_s=status.paused_s, transfer_s=status.transfer_s)
                for server, status in live.items()
            ],
        )
