"""The interface of weight transports, which bring weights to the servers, and the default: a broadcast.

`weights._target_` names the class, and the other keys of `weights` are its options. Launcher, actor and
trainer each make an instance from the run's configuration.
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
from pipelinerl.errors import PlanError

if TYPE_CHECKING:  # their imports take long, and not every process needs them
    from pipelinerl.clients.server_pool import ServerPool
    from pipelinerl.training.publishing.base import PublisherContext, WeightPublisher


@dataclass(frozen=True)
class LaunchContext:
    """One launch of a run, for a transport."""

    run_dir: Path  # absolute
    token: str  # secret that the servers require
    urls: Mapping[str, str]  # of the transport's services that are placed, by name


@dataclass(frozen=True)
class Service:
    """A process on the node of trainer rank 0 that a transport needs, such as a file server.

    The launcher places, starts and restarts it, without the run's secrets.
    """

    name: str
    command: Callable[[LaunchContext, str, int], tuple[str, ...]]  # from the launch, address and port
    port: int  # port to listen at; 0 takes a free one
    port_key: str  # the configuration key that sets the port, for messages


class ServerGate:
    """Blocks requests to servers whose weights are too old. This default blocks none."""

    behind = 0  # largest lag, in versions, among servers in use

    def watch(self, pool: "ServerPool", oldest: Callable[[], int] | None = None) -> None:
        """Adds a pool. oldest: returns the oldest version that the pool can use."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Returns the context in which the gate polls the servers' versions."""
        return nullcontext()

    def recheck(self) -> None:
        """Must be called when the oldest version of a pool changes."""

    def published(self, published: WeightsPublished) -> None:
        """Must be called with each publication, before the pools get its servers."""

    def forget(self, url: str) -> None:
        """Must be called when a server has left."""


class WeightTransport(abc.ABC):
    """A weight transport. The default methods suit a broadcast; subclasses must override `publisher`.

    The constructor raises PlanError for wrong options.
    """

    class Options(Section):
        """The transport's own keys of `weights`."""

    pulled: ClassVar[bool] = False  # whether servers fetch new weights by themselves, at different times
    puts_to_sleep: ClassVar[bool] = False  # whether its publisher has `put_to_sleep`

    def __init__(self, config: RunConfig):
        self.config = config
        self.options = typed_options("weights", config.weights, self.Options)

    def check(self) -> None:  # noqa: B027
        """Raises PlanError if the transport does not suit the run."""

    def needed_capabilities(self) -> dict[str, str]:
        """Returns the capabilities that servers must declare, each with the setting that needs it."""
        return {}

    def plan_notes(self) -> Iterator[str]:
        """Yields lines for `plan=true`."""
        yield from ()

    # --- in the launcher --------------------------------------------------------------------------

    def shared_memory(self, size: int) -> int:
        """Returns the bytes of /dev/shm that the transport takes for weights of `size` bytes."""
        return 0

    def disk(self, size: int) -> int:
        """Returns the bytes of the run directory that the transport takes for weights of `size` bytes."""
        return 0

    def services(self) -> Sequence[Service]:
        """Returns the processes that the transport needs."""
        return ()

    def server_options(self, launch: LaunchContext, server: str) -> list[str]:
        """Returns further options for the command of the server of this name."""
        return []

    def trainer_environment(self, launch: LaunchContext) -> dict[str, str]:
        """Returns further environment variables of the trainer."""
        return {}

    def opened(self, launch: LaunchContext) -> AbstractContextManager[None]:
        """Returns the context in which the jobs of a launch run. Raises PlanError."""
        return nullcontext()

    # --- in trainer rank 0, and in the actor ------------------------------------------------------

    @abc.abstractmethod
    def publisher(self, context: "PublisherContext") -> "WeightPublisher":
        """Returns the WeightPublisher of trainer rank 0."""

    def gate(self, session: aiohttp.ClientSession, on_change: Callable[[], None]) -> ServerGate:
        """Returns the gate of the run's servers. on_change: called when it blocks or unblocks a server."""
        return ServerGate()


class Group(WeightTransport):
    """A broadcast from the trainer to all servers at once (`weights=group`)."""

    def check(self) -> None:
        if self.config.shares_gpus:
            raise PlanError(
                "world.share_gpus=true: NCCL refuses a server and a trainer rank on one GPU; "
                "set weights=shared"
            )

    def plan_notes(self) -> Iterator[str]:
        address = self.config.weights.master_address or "the address of trainer rank 0"
        yield f"ports: of the weight group a free one on {address} at every epoch"

    def publisher(self, context: "PublisherContext") -> "WeightPublisher":
        from pipelinerl.training.publishing.group import GroupPublisher

        return GroupPublisher(self.config, context)


def transport_of(config: RunConfig) -> WeightTransport:
    """Returns the transport that the configuration names. Raises PlanError if it is no WeightTransport."""
    return named_class("weights", config.weights, WeightTransport)(config)
