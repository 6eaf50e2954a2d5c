"""Which versions are probed, and when training waits for late answers."""

from pipelinerl.training.probe import FIRST, LARGEST_SHARE, ProbeSchedule

SERVERS = [1, 2]


def probed(schedule: ProbeSchedule, versions: range, joinings: list[int]) -> list[int]:
    """Begins the probes that are due, and returns their versions."""
    found = []
    for version in versions:
        if schedule.is_due(version, joinings):
            schedule.begin(joinings)
            found.append(version)
    return found


def test_the_first_versions_of_a_launch_are_probed_and_then_every_so_many():
    assert probed(ProbeSchedule(10), range(35), SERVERS) == [0, 1, 2, 10, 20, 30]
    assert probed(ProbeSchedule(10), range(17, 35), SERVERS) == [17, 18, 19, 20, 30]


def test_a_server_that_joins_is_probed_at_its_first_version():
    schedule = ProbeSchedule(10)
    probed(schedule, range(15), SERVERS)
    assert probed(schedule, range(15, 18), [*SERVERS, 3]) == [15]
    assert probed(schedule, range(18, 20), [1]) == []


def test_the_first_probes_are_waited_for_whatever_they_take():
    schedule = ProbeSchedule(1)
    for number in range(FIRST):
        schedule.begin(SERVERS)
        assert schedule.waits(now=100.0 * number)
        schedule.end(began=100.0 * number, now=100.0 * number + 90)
    schedule.begin(SERVERS)
    assert not schedule.waits(now=300.0)


def test_the_others_are_waited_for_while_they_have_held_training_up_for_a_small_share_of_the_time():
    schedule = ProbeSchedule(1)
    schedule.begin(SERVERS)
    schedule.end(began=0.0, now=50.0)  # before training
    for _ in range(FIRST):
        schedule.begin(SERVERS)
    assert schedule.waits(now=50.0)
    schedule.end(began=50.0, now=53.0)
    assert not schedule.waits(now=50.0 + 0.9 * 3 / LARGEST_SHARE)
    assert schedule.waits(now=50.0 + 1.1 * 3 / LARGEST_SHARE)
