"""Admission: how many groups may be in the pipeline at once. Pure state, no I/O.

A group is admitted while `started − settled + group_size ≤ (max_lag + 1) × batch_size`, counted in
rollouts. Trained groups settle when the version they made is live, dropped ones at once, so the
oldest group always settles and admission cannot deadlock; with `max_lag` 0 every group is
sampled by the version that it trains.
"""


class Admission:
    def __init__(self, batch_size: int, group_size: int, max_lag: int | None):
        self._group_size = group_size
        self._limit = None if max_lag is None else (max_lag + 1) * batch_size
        self.started = 0  # rollouts
        self.settled = 0

    def can_start(self) -> bool:
        return self._limit is None or self.started - self.settled + self._group_size <= self._limit

    def start(self) -> None:
        self.started += self._group_size

    def settle(self, rollouts: int) -> None:
        self.settled += rollouts
        assert self.settled <= self.started, "more rollouts settled than started"
