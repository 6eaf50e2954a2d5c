"""Admission: whether another group may start. Pure state, no I/O; all counts are rollouts.

With `max_lag`, a group is admitted while `started − settled + group_size ≤ (max_lag + 1) × batch_size`.
Trained groups settle when the version they made is live, dropped ones at once. So the oldest group always
settles, and admission cannot deadlock. With `max_lag` 0 every group is sampled by the version that it trains.

Without `max_lag`, a group is admitted while fewer than `unread_limit` rollouts are finished and not settled.
That is more than a step, so the trainer always has a step to close, which settles its groups.
"""

from pipelinerl.config import RunConfig

STEPS_AHEAD = 2  # finished rollouts that may wait without `max_lag`: a step being trained, one being formed


def unread_limit(batch_size: int, in_flight: int) -> int:
    """Returns how many rollouts may be finished and not settled where there is no `max_lag`.

    The servers may empty while nothing is admitted. Another `in_flight` rollouts keep the trainer busy until
    they are full again.
    """
    return STEPS_AHEAD * batch_size + in_flight


class Admission:
    """in_flight: requests that all servers together take.
    most_judging: rollouts that may wait for a verdict; None = any number.
    """

    def __init__(
        self,
        batch_size: int,
        group_size: int,
        max_lag: int | None,
        in_flight: int,
        most_judging: int | None = None,
    ):
        self._group_size = group_size
        self._limit = None if max_lag is None else (max_lag + 1) * batch_size
        self._unread_limit = unread_limit(batch_size, in_flight)
        self._most_judging = most_judging
        self.started = 0
        self.finished = 0  # in groups that are written
        self.settled = 0
        self.judging = 0  # that wait for a verdict
        self.gate_open = True  # whether requests may be sent (`schedule: async`)

    def blocked_by(self) -> str | None:
        """Returns the word for what keeps a group from starting, or None if one may start."""
        if not self.gate_open:
            return "gate"
        if self._most_judging is not None and self.judging > self._most_judging:
            return "judging"
        if self._limit is None:
            return "unread" if self.finished - self.settled >= self._unread_limit else None
        if self.started - self.settled + self._group_size > self._limit:
            return "lag"
        return None

    def start(self) -> None:
        self.started += self._group_size

    def finish(self) -> None:
        self.finished += self._group_size

    def settle(self, rollouts: int) -> None:
        self.settled += rollouts
        assert self.settled <= self.started, "more rollouts settled than started"


def admission_of(config: RunConfig) -> Admission:
    """Returns the admission of a run that begins."""
    in_flight = config.requests_in_flight
    return Admission(
        config.batch_size,
        config.group_size,
        config.lag_limit,
        in_flight,
        config.judging.max_waiting or 2 * in_flight,
    )
