"""What is compared with TRL: curves that are made by hand."""

import math

import pytest

from benchmarks.trl.curves import Curve


def curve(shares: list[float], seconds: float = 2.0) -> Curve:
    ends = [100.0 + seconds * (i + 1) for i in range(len(shares))]
    return Curve(100.0, list(zip(ends, shares, strict=True)), batch_size=8, cpu_s={"server": 0.4})


def test_the_warm_up_does_not_count():
    slow_start = Curve(
        0.0,
        [(t, 0.0) for t in (10.0, 20.0, 30.0, 40.0, 50.0, 51.0, 52.0)],
        batch_size=8,
        cpu_s={"server": 0.3, "trainer": 0.02},
    )
    assert slow_start.samples_per_s == pytest.approx(8.0)
    assert slow_start.cpu_ms_per_sample == pytest.approx(20.0)


def test_time_ends_when_the_mean_of_five_batches_is_reached():
    shares = [0.0, 1.0, 0.8, 0.9, 0.9, 0.9, 1.0]
    assert curve(shares).seconds_to(0.9) == pytest.approx(12.0)  # 0.9 is the mean of the second to the sixth
    assert curve(shares).seconds_to(0.95) == math.inf
