"""A simulated trainer, which trains on rows in order and publishes after each step."""

import math
from collections import deque
from enum import Enum, auto

from contracts.records import MicroBatchRow
from extensions.simulator.rates import Rates


class Doing(Enum):
    """The trainer's activity."""

    WAITING = auto()  # waits for a row
    TRAINING = auto()
    QUIESCING = auto()  # waits until no request is in flight
    PUBLISHING = auto()


class Trainer:
    """A simulated trainer, which trains on each step's rows `epochs` times. until: end of its activity.

    whole_steps: whether it begins a step only when all its rows are there.
    """

    def __init__(self, rates: Rates, epochs: int, whole_steps: bool):
        self._rates = rates
        self._whole_steps = whole_steps
        self._epochs = epochs
        self._epoch_s = 0.0  # seconds of the step's first epoch so far
        self._rows: deque[MicroBatchRow] = deque()
        self._row: MicroBatchRow | None = None
        self.doing = Doing.WAITING
        self.until = math.inf
        self.seconds = dict.fromkeys(Doing, 0.0)
        self._since = 0.0

    def put(self, rows: list[MicroBatchRow], now: float) -> None:
        """Adds rows to train."""
        self._rows += rows
        if self.doing is Doing.WAITING:
            self.train_next(now)

    def train_next(self, now: float) -> None:
        """Starts to train on the next row, or to wait for one."""
        goes_on = self._row is not None and not self._row.closes_step
        whole = goes_on or any(row.closes_step for row in self._rows)
        if not self._rows or (self._whole_steps and not whole):
            self._row = None
            self.change(Doing.WAITING, now, math.inf)
            return
        self._row = self._rows.popleft()
        tokens = max(sum(len(s.token_ids) for s in sequences) for sequences in self._row.micro_batches)
        seconds = tokens / self._rates.train_tokens_per_s
        if self._row.closes_step:
            seconds += self._closing_s(self._epoch_s + seconds)
            self._epoch_s = 0.0
        else:
            self._epoch_s += seconds
        self.change(Doing.TRAINING, now, now + seconds)

    def _closing_s(self, epoch_s: float) -> float:
        """Returns the seconds of a step after its first epoch: all updates and the other epochs."""
        return self._epochs * self._rates.optimizer_s + (self._epochs - 1) * epoch_s

    @property
    def row(self) -> MicroBatchRow:
        """The current row, which must exist."""
        assert self._row is not None
        return self._row

    def change(self, doing: Doing, now: float, until: float) -> None:
        """Starts another activity, from `now` until `until`."""
        self.seconds[self.doing] += now - self._since
        self.doing = doing
        self._since = now
        self.until = until
