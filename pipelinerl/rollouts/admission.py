"""Admission decides whether another group may start. Pure state, no I/O; all counts are rollouts.

With `max_lag`, a group is admitted while `started − settled + group_size ≤ (max_lag + 1) × batch_size`.
Trained groups settle when their step's version is live, dropped groups at once. So the oldest group always
settles, and admission cannot deadlock. With `max_lag` 0, every group is sampled by the version that it
trains.

Servers that pull weights may be `behind` the newest version by some versions. The limit is then smaller by as
many steps, but at least one step, because servers that are too far behind get no requests.

The queue is bounded too: `started − settled + group_size ≤ pace + STEPS_AHEAD × batch_size`. The pace is the
number of rollouts that settle while a group is generated; until it is measured, the number of request slots.
By Little's law, the trainer keeps its speed if `pace` rollouts are in progress, so the others wait for it.

This bound applies only while `batch_size` rollouts are finished and not settled, because the trainer can then
close a step, which settles its groups.
"""

from pipelinerl.config import RunConfig
from pipelinerl.metrics import BlockedBy

STEPS_AHEAD = 2.5  # one step being trained, one that waits for the trainer, and half of one being formed
REMEMBERED_STEPS = 4  # steps over whose groups the pace is averaged


class Pace:
    """The mean number of rollouts that settle while a group is generated, over the last finished groups.

    Groups that started before any rollout had settled are ignored.

    weight: weight of one group in the exponential average.
    rollouts: the average, or None before the first group.
    """

    def __init__(self, weight: float):
        self.rollouts: float | None = None
        self._weight = weight
        self._settled_at_start: dict[int, int] = {}

    def start(self, group_id: int, settled: int) -> None:
        self._settled_at_start[group_id] = settled

    def finish(self, group_id: int, settled: int, slots: int) -> None:
        """Adds a finished group to the average, which starts at `slots`."""
        before = self._settled_at_start.pop(group_id)
        if before:
            average = slots if self.rollouts is None else self.rollouts
            self.rollouts = average + self._weight * (settled - before - average)


class Admission:
    """The counts of rollouts that decide whether another group may start.

    slots: request slots of all servers; updated by the actor.
    most_judging: the number of rollouts that may wait for a judgement; None = twice `slots`.
    away: the reason if more wait.
    """

    def __init__(
        self,
        batch_size: int,
        group_size: int,
        max_lag: int | None,
        slots: int,
        most_judging: int | None = None,
        away: BlockedBy = BlockedBy.JUDGING,
    ):
        self._batch_size = batch_size
        self._group_size = group_size
        self._limit = None if max_lag is None else (max_lag + 1) * batch_size
        self._pace = Pace(min(1.0, group_size / (REMEMBERED_STEPS * batch_size)))
        self._most_judging = most_judging
        self._away = away
        self.slots = slots
        self.started = 0
        self.finished = 0  # rollouts of complete groups
        self.settled = 0
        self.judging = 0  # rollouts that wait for a judgement
        self.behind = 0  # largest lag of a server with requests, in versions
        self.paused = False  # True while requests are paused until the next publication

    def blocked_by(self) -> BlockedBy | None:
        """Returns the reason why no group may start, or None if one may."""
        if self.paused:
            return BlockedBy.PAUSED
        if self.judging > (self._most_judging or 2 * self.slots):
            return self._away
        with_another = self.started - self.settled + self._group_size
        if self._limit is not None and with_another > self._limit:
            return BlockedBy.LAG
        if self._limit is not None and with_another > self._limit_behind:
            return BlockedBy.BEHIND
        has_a_step = self.finished - self.settled >= self._batch_size
        pace = self.slots if self._pace.rollouts is None else self._pace.rollouts
        if has_a_step and with_another > pace + STEPS_AHEAD * self._batch_size:
            return BlockedBy.QUEUE
        return None

    @property
    def _limit_behind(self) -> int:
        """The limit of unsettled rollouts, given servers that are `behind`."""
        return max(self._limit - self.behind * self._batch_size, self._batch_size)

    def start(self, group_id: int) -> None:
        self.started += self._group_size
        self._pace.start(group_id, self.settled)

    def finish(self, group_id: int) -> None:
        self.finished += self._group_size
        self._pace.finish(group_id, self.settled, self.slots)

    def settle(self, rollouts: int) -> None:
        self.settled += rollouts
        assert self.settled <= self.started, "more rollouts settled than started"


def admission_of(config: RunConfig, programs: int | None = None) -> Admission:
    """Returns the admission of a run, with the limits in its configuration. programs: of the domain."""
    return Admission(
        config.batch_size,
        config.group_size,
        config.lag_limit,
        config.requests_in_flight,
        config.judging.max_waiting or programs,
        BlockedBy.AGENTS if programs else BlockedBy.JUDGING,
    )
