import pytest

from pipelinerl.rollouts.admission import STEPS_AHEAD, Admission


def admission_of(batch_size: int, group_size: int, max_lag: int | None, **limits) -> Admission:
    return Admission(batch_size, group_size, max_lag, **{"slots": 16} | limits)


@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_admits_exactly_max_lag_plus_one_batches(max_lag):
    admission = admission_of(8, 4, max_lag)
    while not admission.blocked_by():
        admission.start(admission.started)
    assert admission.blocked_by() == "lag" and admission.started == 8 * (max_lag + 1)
    admission.settle(4)
    assert admission.blocked_by() is None


def test_a_group_that_would_overshoot_waits():
    admission = admission_of(8, 8, 0)
    admission.start(0)
    admission.settle(4)
    assert admission.blocked_by() == "lag"
    admission.settle(4)
    assert admission.blocked_by() is None


def test_what_waits_for_the_trainer_is_bounded_and_what_is_under_way_is_not():
    admission = admission_of(8, 4, None, slots=0)
    for group in range(1000):  # the places on the servers bound it, not admission
        assert admission.blocked_by() is None
        admission.start(group)
    admission.finish(0)
    assert admission.blocked_by() is None  # the trainer has no step to close
    admission.finish(1)
    assert admission.blocked_by() == "queue"


def test_a_closed_gate_and_a_queue_of_verdicts_block_by_name():
    admission = admission_of(8, 4, 1, most_judging=6)
    admission.judging = 7
    assert admission.blocked_by() == "judging"
    admission.paused = True
    assert admission.blocked_by() == "gate"
    admission.judging, admission.paused = 6, False
    assert admission.blocked_by() is None


def test_the_bounds_follow_the_requests_that_the_servers_take_now():
    """Those before the first group that says something of the pace, and where no number is given."""
    admission = admission_of(8, 4, None, slots=16)
    admission.judging = 33
    assert admission.blocked_by() == "judging"
    admission.slots = 64
    for group in range(1000):
        if not admission.blocked_by():
            admission.start(group)
            if group < 2:
                admission.finish(group)
    assert admission.started == 64 + STEPS_AHEAD * 8
    admission.slots = 15
    assert admission.blocked_by() == "judging"


def test_the_pace_that_was_measured_stays_where_servers_take_other_numbers():
    admission = admission_of(batch_size=4, group_size=4, max_lag=None, slots=400)
    for group in range(40):  # each group settles before the next one begins
        admission.start(group)
        admission.finish(group)
        admission.settle(4)
    admission.slots = 4000
    for group in range(40, 1000):
        if not admission.blocked_by():
            admission.start(group)
            if group == 40:
                admission.finish(group)
    assert admission.started - admission.settled <= 4 + STEPS_AHEAD * 4


def test_settling_more_than_started_is_an_error():
    admission = admission_of(8, 4, 0)
    with pytest.raises(AssertionError, match="more rollouts settled than started"):
        admission.settle(4)


@pytest.mark.parametrize(("behind", "batches"), [(0, 5), (1, 4), (4, 1), (9, 1)])
def test_servers_that_are_behind_leave_room_for_fewer_steps_and_always_for_one(behind, batches):
    admission = admission_of(8, 4, 4)
    admission.behind = behind
    while not (why := admission.blocked_by()):
        admission.start(admission.started)
    assert admission.started == 8 * batches
    assert why == ("behind" if behind else "lag")
    admission.behind = 0
    assert admission.blocked_by() == (None if behind else "lag")


def test_without_a_limit_servers_that_are_behind_hold_nothing_back():
    admission = admission_of(8, 4, None)
    admission.behind = 3
    admission.start(0)
    assert admission.blocked_by() is None
