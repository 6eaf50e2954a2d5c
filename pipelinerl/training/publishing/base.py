"""The interface of weight publishers, and the publication that every trainer rank takes part in."""

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.records import ServerCondemned, WeightsPublished
from contracts.trainer import TrainerWorker
from contracts.weights import WeightManifest
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.training.ranks import Ranks


@dataclass(frozen=True)
class PublisherContext:
    """What trainer rank 0 gives the publisher of a run's weights.

    run_dir: the run's directory.
    launched: the run's servers.
    token: the secret that servers ask for.
    record: tells the launcher to end a server.
    needs: the capabilities that every server must declare, each with the setting that needs it.
    address: this machine's address, by which the servers reach it.
    buffers: returns the model's persistent buffers (`TrainerWorker.buffers`).
    """

    run_dir: Path
    launched: LaunchedServers
    token: str | None
    manifest: WeightManifest
    record: Callable[[ServerCondemned], object]
    needs: Mapping[str, str]
    address: str
    buffers: Callable[[], Mapping[str, torch.Tensor]]


class WeightPublisher(abc.ABC):
    """A publisher of weight versions to the run's servers, on trainer rank 0.

    A publication is `open`, `send` and `confirm`, in that order. `run` is the id of this life of the run.
    """

    run: str

    @property
    def figures(self) -> dict[str, float]:
        """Returns further measurements of the last publication, by their names in the metrics."""
        return {}

    @abc.abstractmethod
    def wait_for_servers(self) -> None:
        """Waits until every server is ready, or has had enough time."""

    @abc.abstractmethod
    def is_stranded(self) -> bool:
        """Returns whether the newest version must be published again, so that rollouts can come.

        Must be called at intervals while no rollout comes.
        """

    @abc.abstractmethod
    def rollouts_come(self) -> None:
        """Records that rollouts come, so the servers are not silent."""

    @abc.abstractmethod
    def open(self, version: int) -> None:
        """Prepares the publication of a version. Raises NoServersError if there is no server for it."""

    @abc.abstractmethod
    def send(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Sends the weights. A failure that is not of `weights` itself raises nothing.

        So the caller can exhaust the iterator, and `confirm` handles the failure.
        """

    @abc.abstractmethod
    def confirm(self, version: int) -> WeightsPublished | None:
        """Ends the publication. Returns None if the version must be published again."""

    def must_repeat(self) -> bool:
        """Waits until servers can get the newest version, once training is over.

        Returns whether it must be published again before that.
        """
        return False

    @abc.abstractmethod
    def pin(self, url: str) -> None:
        """Makes the server keep its weights, while another one answers."""

    @abc.abstractmethod
    def release(self, url: str) -> None:
        """Lets a pinned server have the next version again."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what the publisher has started."""


def errors_of(
    weights: Iterator[tuple[str, torch.Tensor]], errors: list[Exception]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights. Appends an error that gathering them raises, so that it is told from others."""
    try:
        for weight in weights:  # noqa: UP028 - `yield from` would also pass on errors of the reader
            yield weight
    except Exception as error:
        errors.append(error)
        raise


def publish(
    worker: TrainerWorker, ranks: Ranks, publisher: WeightPublisher | None, version: int
) -> WeightsPublished | None:
    """Publishes the weights. Every rank must call it; the publisher and the result exist only on rank 0.

    Every rank exhausts `gather_weights`, whether or not rank 0 is still sending. Rank 0 decides for all
    whether to publish again. So no rank can wait in a collective that another has left.
    """
    published = None

    def confirmed() -> bool:
        nonlocal published
        published = publisher.confirm(version)
        return published is not None

    while True:
        ranks.on_rank_0(publisher).open(version)  # here, not inside a gather
        weights = worker.gather_weights()
        if publisher:
            publisher.send(weights)
        for _ in weights:
            pass
        if ranks.agree(confirmed):
            return published
