"""A run in virtual time: the real admission, and devices that only count seconds. It starts no process."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from benchmarks.emulated.lengths import Lengths
from pipelinerl.rollouts.admission import Admission


@dataclass(frozen=True)
class Devices:
    """Times of a server and a trainer in seconds, and sizes in rollouts."""

    places: int
    server_token_s: float
    trainer_token_s: float
    publish_s: float
    batch_size: int
    group_size: int
    max_lag: int
    most_tokens: int


@dataclass(eq=False)
class Group:
    """versions: that were live when its answers began."""

    number: int
    versions: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    left: int = 0  # answers that have not ended

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class VirtualRun:
    """Steps are formed as groups arrive. One that is older than `max_lag` then is dropped as stale."""

    def __init__(self, devices: Devices, lengths: Lengths):
        self._devices = devices
        self._lengths = lengths
        self._admission = Admission(
            devices.batch_size, devices.group_size, devices.max_lag, in_flight=devices.places
        )
        self._events: list[tuple[float, int, Group | None]] = []  # None: the trainer's step ends
        self._answers = 0
        self._groups = 0
        self._to_start: deque[Group] = deque()
        self._in_flight = 0
        self._open_step: list[Group] = []
        self._formed: deque[list[Group]] = deque()
        self._formed_steps = 0
        self._training: list[Group] | None = None
        self._idle_since = 0.0
        self.seconds = 0.0
        self.idle_s = 0.0  # of the trainer, after its first step has begun
        self.version = 0
        self.lag_tokens = 0  # lag, summed over the trained tokens
        self.trained: list[Group] = []
        self.stale: list[Group] = []
        self.stale_by_queueing = 0  # of these, those that were young enough when they were generated

    def run(self, steps: int) -> None:
        self._fill()
        while self.version < steps:
            self.seconds, _, group = heapq.heappop(self._events)
            if group is None:
                self._close_step()
            else:
                self._end_answer(group)
            self._begin_step()
            self._fill()

    def _after(self, seconds: float, group: Group | None) -> None:
        order = group.number if group else -1
        heapq.heappush(self._events, (self.seconds + seconds, order, group))

    def _fill(self) -> None:
        while self._in_flight < self._devices.places:
            if not self._to_start:
                if self._admission.blocked_by():
                    return
                self._open_group()
            self._begin_answer(self._to_start.popleft())

    def _open_group(self) -> None:
        group = Group(self._groups, left=self._devices.group_size)
        self._groups += 1
        self._admission.start(group.number)
        self._to_start.extend([group] * group.left)

    def _begin_answer(self, group: Group) -> None:
        length = min(self._lengths.of(self._answers), self._devices.most_tokens)
        self._answers += 1
        self._in_flight += 1
        group.versions.append(self.version)
        group.lengths.append(length)
        self._after(length * self._devices.server_token_s, group)

    def _end_answer(self, group: Group) -> None:
        self._in_flight -= 1
        group.left -= 1
        if not group.left:
            self._admission.finish(group.number)
            self._form(group)

    def _form(self, group: Group) -> None:
        oldest = min(group.versions)
        if self._formed_steps - oldest > self._devices.max_lag:
            self.stale.append(group)
            self.stale_by_queueing += self.version - oldest < self._devices.max_lag
            self._admission.settle(self._devices.group_size)
            return
        self._open_step.append(group)
        if len(self._open_step) * self._devices.group_size == self._devices.batch_size:
            self._formed.append(self._open_step)
            self._open_step = []
            self._formed_steps += 1

    def _begin_step(self) -> None:
        if self._training is not None or not self._formed:
            return
        self._training = self._formed.popleft()
        if self.version:
            self.idle_s += self.seconds - self._idle_since
        tokens = sum(group.tokens for group in self._training)
        self._after(tokens * self._devices.trainer_token_s + self._devices.publish_s, None)

    def _close_step(self) -> None:
        for group in self._training:
            lags = [self.version - version for version in group.versions]
            self.lag_tokens += sum(lag * length for lag, length in zip(lags, group.lengths, strict=True))
        self.trained += self._training
        self._training = None
        self._idle_since = self.seconds
        self.version += 1
        self._admission.settle(self._devices.batch_size)
