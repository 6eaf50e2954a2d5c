"""When a job that has ended is started again."""

from pipelinerl.launcher.supervising.failures import Restarts


def wait_of(restarts: Restarts, ended: float, **how: int) -> float:
    """Returns how long after its end the job is started again."""
    restarts.record_end(ended, **how)
    assert not restarts.is_spent and restarts.is_pending
    now = ended
    while not restarts.is_due(now):
        now += 0.25
    assert not restarts.is_due(now) and not restarts.is_pending
    return now - ended


def test_each_restart_that_follows_soon_waits_longer_until_there_are_no_more():
    service = Restarts(limit=8, shortest_s=0.5, longest_s=30)
    assert [wait_of(service, end) for end in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    service.record_end(9)
    assert service.is_spent and not service.is_due(1000)


def test_ends_of_long_ago_do_not_count():
    server = Restarts(limit=3)
    assert [wait_of(server, end) for end in range(0, 6000, 201)] == [1, 2] + [4] * 28
