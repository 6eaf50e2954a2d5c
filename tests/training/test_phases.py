"""The phases of a publication add up to its time, and gathering is told from sending."""

import json
import time

import pytest

from contracts.records import WeightsPublished
from pipelinerl.spans import Spans, spans_path
from pipelinerl.training.phases import Phases, add_phases


def test_every_moment_belongs_to_one_phase():
    phases = Phases()
    began = time.monotonic()
    for name in ("open", "send", "confirm"):
        phases.begin(name)
        time.sleep(0.01)
    seconds = phases.seconds()
    assert [*seconds] == ["open", "send", "confirm"]
    assert sum(seconds.values()) == pytest.approx(time.monotonic() - began, abs=5e-3)


def test_what_items_take_to_come_is_no_part_of_what_is_done_with_them():
    def slow_items():
        for item in (1, 2):
            time.sleep(0.02)
            yield item

    phases = Phases()
    phases.begin("send")
    assert [*phases.inside("gather", slow_items())] == [1, 2]
    time.sleep(0.005)
    seconds = phases.seconds()
    assert seconds["gather"] >= 0.04 > seconds["send"] >= 0.005


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
