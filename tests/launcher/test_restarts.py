"""When a service that has ended is started again."""

from pipelinerl.launcher.restarts import MOST, Restarts


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def due_after(restarts: Restarts, clock: Clock, status: int = 1) -> float:
    """Returns how long it is asked for until it is due."""
    ended = clock.now
    while not restarts.is_due(status):
        assert not restarts.is_spent
        clock.now += 0.25
    return clock.now - ended


def test_each_restart_that_follows_soon_waits_longer_until_there_are_no_more(monkeypatch):
    clock = Clock(monkeypatch)
    restarts = Restarts()
    assert [due_after(restarts, clock) for _ in range(MOST)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert not restarts.is_due(1) and restarts.is_spent


def test_one_that_lasted_begins_anew(monkeypatch):
    clock = Clock(monkeypatch)
    restarts = Restarts()
    for _ in range(3 * MOST):
        clock.now += 61
        assert due_after(restarts, clock, status=-9) == 0.5


def test_one_that_is_refused_is_not_started_again(monkeypatch):
    restarts = Restarts()
    assert not restarts.is_due(2) and restarts.is_spent
