import itertools
import random

import pytest

from pipelinerl.rollouts.admission import Admission, unread_limit


def admission_of(batch_size: int, group_size: int, max_lag: int | None, **limits) -> Admission:
    return Admission(batch_size, group_size, max_lag, **{"in_flight": 16} | limits)


@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_admits_exactly_max_lag_plus_one_batches(max_lag):
    admission = admission_of(8, 4, max_lag)
    while not admission.blocked_by():
        admission.start()
    assert admission.blocked_by() == "lag" and admission.started == 8 * (max_lag + 1)
    admission.settle(4)
    assert admission.blocked_by() is None


def test_a_group_that_would_overshoot_waits():
    admission = admission_of(8, 8, 0)
    admission.start()
    admission.settle(4)
    assert admission.blocked_by() == "lag"
    admission.settle(4)
    assert admission.blocked_by() is None


def test_without_max_lag_what_is_finished_and_not_settled_is_bounded():
    admission = admission_of(8, 4, None)
    for _ in range(1000):  # under way: the places on the servers bound it, not admission
        assert admission.blocked_by() is None
        admission.start()
    while not admission.blocked_by():
        admission.finish()
    assert admission.blocked_by() == "unread" and admission.finished == unread_limit(8, 16) == 32
    admission.settle(8)
    assert admission.blocked_by() is None


def test_without_max_lag_a_slow_trainer_is_never_left_without_a_step():
    """What is admitted, finished and settled in any order: when nothing may start, a step can be closed."""
    for in_flight, group_size in itertools.product((1, 7, 100), (2, 8)):
        admission, dice = admission_of(8, group_size, None, in_flight=in_flight), random.Random(in_flight)
        for _ in range(1000):
            under_way = admission.started - admission.finished
            if under_way and dice.random() < 0.6:
                admission.finish()
            elif not admission.blocked_by() and under_way < in_flight:
                admission.start()
            elif admission.finished - admission.settled >= 8 and dice.random() < 0.2:
                admission.settle(8)
            assert admission.blocked_by() is None or admission.finished - admission.settled >= 8
            assert (
                admission.finished - admission.settled < unread_limit(8, in_flight) + in_flight + group_size
            )
        assert admission.settled > 0


def test_a_closed_gate_and_a_queue_of_verdicts_block_by_name():
    admission = admission_of(8, 4, 1, most_judging=6)
    admission.judging = 7
    assert admission.blocked_by() == "judging"
    admission.gate_open = False
    assert admission.blocked_by() == "gate"
    admission.judging, admission.gate_open = 6, True
    assert admission.blocked_by() is None


def test_settling_more_than_started_is_an_error():
    admission = admission_of(8, 4, 0)
    with pytest.raises(AssertionError, match="more rollouts settled than started"):
        admission.settle(4)


@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_fifo_groups_never_exceed_max_lag(max_lag):
    """Whatever is dropped on the way: a group that is not overtaken trains within max_lag versions."""
    groups_per_step, group_size = 4, 2
    admission = admission_of(groups_per_step * group_size, group_size, max_lag)
    dice, version, pipeline = random.Random(max_lag), 0, []
    for _ in itertools.repeat(None, 300):
        while not admission.blocked_by():
            admission.start()
            pipeline.append(version)
        if dice.random() < 0.5:
            pipeline.pop(dice.randrange(len(pipeline)))
            admission.settle(group_size)
            continue
        batch, pipeline = pipeline[:groups_per_step], pipeline[groups_per_step:]
        if len(batch) < groups_per_step:
            pipeline = batch
            continue
        assert max(version - sampled_by for sampled_by in batch) <= max_lag
        version += 1
        admission.settle(groups_per_step * group_size)
    assert version > 20
