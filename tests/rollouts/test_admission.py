import itertools
import random

import pytest

from pipelinerl.rollouts.admission import Admission


@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_admits_exactly_max_lag_plus_one_batches(max_lag):
    admission = Admission(batch_size=8, group_size=4, max_lag=max_lag)
    while admission.can_start():
        admission.start()
    assert admission.started == 8 * (max_lag + 1)
    admission.settle(4)
    assert admission.can_start()


def test_a_group_that_would_overshoot_waits():
    admission = Admission(batch_size=8, group_size=8, max_lag=0)
    admission.start()
    admission.settle(4)
    assert not admission.can_start()
    admission.settle(4)
    assert admission.can_start()


def test_no_limit_without_max_lag():
    admission = Admission(batch_size=8, group_size=4, max_lag=None)
    for _ in range(1000):
        assert admission.can_start()
        admission.start()


def test_settling_more_than_started_is_an_error():
    admission = Admission(batch_size=8, group_size=4, max_lag=0)
    with pytest.raises(AssertionError, match="more rollouts settled than started"):
        admission.settle(4)


@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_fifo_groups_never_exceed_max_lag(max_lag):
    """Whatever is dropped on the way: a group that is not overtaken trains within max_lag versions."""
    groups_per_step, group_size = 4, 2
    admission = Admission(groups_per_step * group_size, group_size, max_lag)
    dice, version, pipeline = random.Random(max_lag), 0, []
    for _ in itertools.repeat(None, 300):
        while admission.can_start():
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
