"""How weights reach the servers of a run: the interface of transports, and the broadcast that is the default.

`weights._target_` names the class, and the other keys of `weights` are its options. Launcher, actor and
trainer each make an object of it from the run's configuration, and ask it for what they need.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import aiohttp

from contracts.records import WeightsPublished
from pipelinerl.components import named_class, typed_options
from pipelinerl.config import RunConfig, Section

if TYPE_CHECKING:  # not every process that has a transport needs what they import
    from pipelinerl.clients.server_pool import ServerPool
    from pipelinerl.training.publishing.base import PublisherContext, WeightPublisher


@dataclass(frozen=True)
class LaunchContext:
    """One launch of a run, as a transport needs to know it.

    run_dir: absolute path of the run's directory.
    token: the secret of the run, which its servers ask for.
    urls: URLs of the transport's services by name, as far as they have a place.
    """

    run_dir: Path
    token: str
    urls: Mapping[str, str]


@dataclass(frozen=True)
class Service:
    """A process beside trainer rank 0 that a transport needs, such as a server of files.

    The launcher places it, starts it again if it ends, and gives it none of the run's secrets.

    command: returns its command, from the launch, and the address and the port that it listens at.
    port: that it listens at; 0 takes a free one.
    port_key: the configuration key that sets the port, for messages.
    """

    name: str
    command: Callable[[LaunchContext, str, int], tuple[str, ...]]
    port: int
    port_key: str


class ServerGate:
    """Keeps requests from servers whose weights may not be used. This one lets all servers have requests.

    behind: versions that a server with requests for training is behind the newest, at most.
    """

    behind = 0

    def watch(self, pool: "ServerPool", oldest: Callable[[], int] | None = None) -> None:
        """Guards the servers of this pool. `oldest`: the oldest version that it can use."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Returns the context within which servers are asked for their versions."""
        return nullcontext()

    def recheck(self) -> None:
        """Must be called when the oldest version of a pool changes."""

    def published(self, published: WeightsPublished) -> None:
        """Must be called with each publication, before its servers are given to the pools."""

    def forget(self, url: str) -> None:
        """Must be called when a server has left."""


class WeightTransport(abc.ABC):
    """A way in which weights reach the servers. Its methods are those of a broadcast, but for `publisher`.

    Raises PlanError if the options of the configuration are not those of `Options`.
    """

    class Options(Section):
        """The keys of `weights` that this transport has besides those of every transport."""

    pulled: ClassVar[bool] = False  # whether servers get new weights by themselves, at different times

    def __init__(self, config: RunConfig):
        self.config = config
        self.options = typed_options("weights", config.weights, self.Options)

    def check(self) -> None:  # noqa: B027
        """Raises PlanError if the run cannot have this transport."""

    def needed_capabilities(self) -> dict[str, str]:
        """Returns the capabilities that servers must declare, each with the setting that needs it."""
        return {}

    def plan_notes(self) -> Iterator[str]:
        """Yields lines for `plan=true`: what a user should know of the transport."""
        yield from ()

    # --- in the launcher --------------------------------------------------------------------------

    def services(self) -> Sequence[Service]:
        """Returns the processes that the transport needs."""
        return ()

    def server_options(self, launch: LaunchContext, server: str) -> list[str]:
        """Returns further options of the command of the server of this name."""
        return []

    def trainer_environment(self, launch: LaunchContext) -> dict[str, str]:
        """Returns further variables of the trainer's environment."""
        return {}

    def opened(self, launch: LaunchContext) -> AbstractContextManager[None]:
        """Returns the context within which the jobs of a launch run. Raises PlanError."""
        return nullcontext()

    # --- in trainer rank 0, and in the actor ------------------------------------------------------

    @abc.abstractmethod
    def publisher(self, context: "PublisherContext") -> "WeightPublisher":
        """Returns what publishes the weights."""

    def gate(self, session: aiohttp.ClientSession, on_change: Callable[[], None]) -> ServerGate:
        """Returns the gate before the run's servers. `on_change`: called when it holds one or lets it go."""
        return ServerGate()


class Group(WeightTransport):
    """A broadcast from the trainer to all servers at once (`weights=group`)."""

    def plan_notes(self) -> Iterator[str]:
        address = self.config.weights.master_address or "the address of trainer rank 0"
        yield f"ports: of the weight group a free one on {address} at every epoch"

    def publisher(self, context: "PublisherContext") -> "WeightPublisher":
        from pipelinerl.training.publishing.group import GroupPublisher

        return GroupPublisher(self.config, context)


def transport_of(config: RunConfig) -> WeightTransport:
    """Returns the transport that the configuration names. Raises PlanError if it is none."""
    return named_class("weights", config.weights, WeightTransport)(config)
