"""The phases of a publication add up to its time, and gathering is told from sending."""

import json

import pytest

from contracts.records import WeightsPublished
from pipelinerl.spans import Spans, spans_path
from pipelinerl.training.phases import Phases, add_phases
from tests.clock import Clock


def test_every_moment_belongs_to_one_phase_and_what_items_take_to_come_is_no_part_of_their_sending():
    def slow_items():
        for item in (1, 2):
            clock.now += 4
            yield item

    clock = Clock()
    phases = Phases(clock)
    for name in ("open", "send", "confirm", "send"):
        phases.begin(name)
        clock.now += 1
    for _ in phases.inside("gather", slow_items()):
        clock.now += 1
    assert phases.seconds() == {"open": 1, "send": 4, "confirm": 1, "gather": 8}


def test_spans_of_a_publication_follow_each_other(tmp_path):
    published = WeightsPublished(
        run="r",
        version=4,
        servers=["s"],
        seconds=1.0,
        bytes=8,
        paused_s=0.0,
        phases={"open": 0.1, "gather": 0.2, "send": 0.4, "confirm": 0.3},
    )
    add_phases(Spans(tmp_path, "trainer-0"), published)
    lines = [json.loads(line) for line in spans_path(tmp_path, "trainer-0").read_text().splitlines()]
    assert [(line["n"], line["d"]) for line in lines] == [("open", 0.1), ("send", 0.6), ("confirm", 0.3)]
    for line, following in zip(lines, lines[1:], strict=False):
        assert line["t"] + line["d"] == pytest.approx(following["t"], abs=1e-5)
    assert lines[1]["gather_s"] == 0.2
