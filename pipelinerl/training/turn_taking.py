"""What a trainer rank does when servers and trainer take turns, and the default: they work side by side."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from contracts.trainer import TrainerWorker
from pipelinerl.spans import Spans
from pipelinerl.training.probe import Probe
from pipelinerl.training.ranks import OnRank0, Ranks


@dataclass(frozen=True)
class TurnContext:
    """The tools of one trainer rank.

    rank_zero: proxy of the RankZero; every rank must make the same calls.
    probe: the probe, whose answers must be in before servers sleep.
    waiting: context in which the rank beats while it waits.
    """

    worker: TrainerWorker
    ranks: Ranks
    rank_zero: OnRank0
    probe: Probe
    spans: Spans
    waiting: Callable[[], AbstractContextManager[None]]


class TurnTaking:
    """The default: servers generate while the trainer trains, so that no phase begins.

    Every rank must make the same calls.
    """

    alternates = False  # whether the worker may be called only between `train` and `generate`

    def train(self, version: int) -> None:
        """Begins the training phase, unless it has begun. version: the next one that will be published."""

    def generate(self, version: int) -> None:
        """Begins the generation phase. The weights of `version` are sent, and the servers may load them."""


SIDE_BY_SIDE = TurnTaking()
