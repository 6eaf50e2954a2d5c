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
from pipelinerl.training.turn_taking import SIDE_BY_SIDE, TurnTaking


@dataclass(frozen=True)
class PublisherContext:
    """The arguments of a publisher, from trainer rank 0.

    run_dir: directory of the run.
    launched: servers of the run.
    token: secret that requests to the servers must carry.
    record: appends `ServerCondemned` to the trainer's events: the launcher ends the server.
    needs: capabilities that every server must declare, each with the setting that needs it.
    address: address of this machine, by which the servers reach it.
    buffers: returns the persistent buffers of the model (`TrainerWorker.buffers`).
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

    A publication is `open`, `send` and `confirm`, in that order. `run` is a random id of this trainer
    process: servers refuse the updates of an earlier one.
    """

    run: str

    @property
    def figures(self) -> dict[str, float]:
        """Returns further measurements of the last publication, by their names in the metrics."""
        return {}

    @abc.abstractmethod
    def wait_for_servers(self) -> None:
        """Waits until every server is ready, or the time limit for servers has passed."""

    @abc.abstractmethod
    def is_stranded(self) -> bool:
        """Returns True if the newest version must be published again, because no server samples rollouts.

        Must be called at intervals while no rollout arrives.
        """

    @abc.abstractmethod
    def rollouts_come(self) -> None:
        """Records that a row of rollouts has arrived, so some server samples."""

    @abc.abstractmethod
    def open(self, version: int) -> None:
        """Prepares the publication of a version. Waits for a server, and has silent ones replaced.

        Raises NoServersError if no server is left that could be waited for or replaced.
        """

    @abc.abstractmethod
    def send(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Sends the weights. Raises only the errors of the iterator itself.

        `confirm` handles every other failure, so that the caller can exhaust the iterator first.
        """

    @abc.abstractmethod
    def confirm(self, version: int) -> WeightsPublished | None:
        """Ends the publication. Returns None if the version must be published again."""

    def must_repeat(self) -> bool:
        """Waits, after training, until a server can load the newest version.

        Returns True if the caller must publish the version again and call this method again.
        """
        return False

    def put_to_sleep(self, timeout_s: float) -> None:
        """Puts all servers that are ready to sleep, without their weights. The next publication wakes them.

        Condemns servers that do not sleep within `timeout_s` seconds: their memory is needed.
        """
        raise NotImplementedError(f"{type(self).__name__} puts no server to sleep")

    @abc.abstractmethod
    def pin(self, url: str) -> None:
        """Makes the server keep its weights, as long as another server can be published to."""

    @abc.abstractmethod
    def release(self, url: str) -> None:
        """Lets a pinned server take part in the next publication."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes connections, and ends threads and groups."""


def errors_of(
    weights: Iterator[tuple[str, torch.Tensor]], errors: list[Exception]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights. Appends the error to `errors` if gathering raises one, and raises it."""
    try:
        for weight in weights:  # noqa: UP028 - `yield from` would also pass on errors of the reader
            yield weight
    except Exception as error:
        errors.append(error)
        raise


def publish(
    worker: TrainerWorker,
    ranks: Ranks,
    publisher: WeightPublisher | None,
    version: int,
    turns: TurnTaking = SIDE_BY_SIDE,
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
        turns.train(version)
        ranks.on_rank_0(publisher).open(version)  # here, not inside a gather
        weights = worker.gather_weights()
        if publisher:
            publisher.send(weights)
        for _ in weights:
            pass
        turns.generate(version)
        if ranks.agree(confirmed):
            return published
