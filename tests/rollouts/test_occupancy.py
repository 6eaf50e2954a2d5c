"""The places on the servers: shares weighed by time, and a line a second."""

import json

import pytest

from pipelinerl.rollouts import occupancy as module
from pipelinerl.rollouts.occupancy import Occupancy, OccupancySums, OccupancyTimes
from pipelinerl.spans import Spans, spans_path


def occupancy(in_flight: int, under_way: int = 8, away: int = 0, blocked_by: str | None = None) -> Occupancy:
    return Occupancy(in_flight=in_flight, capacity=8, under_way=under_way, away=away, blocked_by=blocked_by)


def test_shares_are_weighed_by_time():
    sums = OccupancySums()
    sums.add(occupancy(8), 3.0)
    sums.add(occupancy(0, under_way=4, away=2, blocked_by="lag"), 1.0)
    metrics = sums.metrics()
    assert metrics["places_s"] == 4.0
    assert metrics["places_busy"] == pytest.approx(0.75)
    assert metrics["outside_requests"] == pytest.approx(4 / 28)
    assert metrics["judged_share"] == pytest.approx(2 / 28)
    assert metrics["blocked_lag"] == pytest.approx(0.25)


def test_a_second_is_a_span_and_a_version_takes_what_came_since_the_last(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    times = OccupancyTimes(Spans(tmp_path, "actor"))
    now += 60.0  # in which servers load
    times.sample(occupancy(0, blocked_by="gate"))
    for _ in range(25):
        now += 0.1
        times.sample(occupancy(4))
    lines = [json.loads(line) for line in spans_path(tmp_path, "actor").read_text().splitlines()]
    assert [line["n"] for line in lines] == ["places", "places"]
    assert lines[0]["in_flight"] == 4.0 and lines[0]["d"] == pytest.approx(1.0, abs=0.11)
    metrics = times.of_version()
    assert (metrics["places_s"], metrics["places_busy"]) == (pytest.approx(2.5), pytest.approx(0.5))
    assert times.of_version() == {}
