"""The seconds of a run, summed over its launches: what lies between them does not count."""

import pytest

from pipelinerl.report.wall_time import Launch, WallTime


def wall_time(resumed_at: list[float], moments: list[float]) -> WallTime:
    found = WallTime(resumed_at)
    for moment in moments:
        found.observe(moment)
    return found


TWO = wall_time([500.0], [130.0, 100.0, 510.0, 540.0, 520.0])


def test_one_launch_counts_from_its_first_record_to_its_last_or_by_its_own_clock():
    one = wall_time([], [130.0, 100.0, 110.0])
    assert one.seconds() == 30.0
    assert one.seconds(Launch(95.0, 140.0)) == 45.0


def test_the_time_between_two_launches_does_not_count():
    assert TWO.seconds() == 30.0 + 30.0
    assert TWO.seconds(Launch(501.0, 550.0)) == 30.0 + 49.0


def test_a_resumption_within_a_launch_is_part_of_it():
    """The launcher has begun its workers again at 520; the launch lasts from 501 to 550 all the same."""
    begun_again = wall_time([500.0, 520.0], [100.0, 130.0, 510.0, 515.0, 530.0, 540.0])
    assert begun_again.seconds(Launch(501.0, 550.0)) == 30.0 + 49.0


def test_without_a_record_only_the_present_launch_is_known():
    assert WallTime().seconds() is None
    assert WallTime().seconds(Launch(5.0, 7.0)) == pytest.approx(2.0)
