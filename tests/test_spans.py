"""Spans: a line each, whatever happens in the block, and sums of what has ended."""

import errno
import json

import pytest

from pipelinerl import metrics
from pipelinerl.spans import Spans, spans_path
from tests.clock import Clock


def lines_of(run_dir, process="trainer-0") -> list[dict]:
    return [json.loads(line) for line in spans_path(run_dir, process).read_text().splitlines()]


def test_a_line_says_when_a_block_began_how_long_it_took_and_its_facts(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelinerl.spans.time", clock := Clock())
    spans = Spans(tmp_path, "trainer-0")
    with spans("publish", version=3):
        clock.now += 1
        with spans("probe"):
            clock.now += 2
    inner, outer = lines_of(tmp_path)  # flushed by the line
    assert outer == {"n": "publish", "t": 1000, "d": 3, "version": 3}
    assert inner == {"n": "probe", "t": 1001, "d": 2}


def test_a_block_that_raises_is_a_span_too(tmp_path):
    with pytest.raises(ZeroDivisionError), Spans(tmp_path, "trainer-0")("learn"):
        _ = 1 / 0
    assert [line["n"] for line in lines_of(tmp_path)] == ["learn"]


def test_what_has_ended_is_added_up_until_it_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelinerl.spans.time", clock := Clock())
    spans = Spans(tmp_path, "trainer-0")
    for name, seconds in (("wait", 0.5), ("wait", 0.25), ("learn", 0.125)):
        spans.add(name, 1.0, seconds)
    clock.now += 7
    assert spans.taken() == (7, {"wait": 0.75, "learn": 0.125})
    assert spans.taken() == (0, {})


def test_another_launch_goes_on_in_the_same_file(tmp_path):
    Spans(tmp_path, "actor").add("places", 1.0, 1.0)
    spans_path(tmp_path, "actor").open("a").write('{"n": "torn')
    Spans(tmp_path, "actor").add("places", 2.0, 1.0)
    assert [line["t"] for line in lines_of(tmp_path, "actor")] == [1.0, 2.0]


def test_a_disk_that_fails_costs_the_spans_alone(tmp_path, monkeypatch, caplog):
    spans = Spans(tmp_path, "actor")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(metrics, "append_whole", fail)
        for _ in range(2):
            spans.add("places", 1.0, 0.5)
    spans.add("places", 2.0, 0.5)
    assert [line["t"] for line in lines_of(tmp_path, "actor")] == [2.0]
    (said,) = [record.message for record in caplog.records]
    assert said == f"spans are left out of {spans_path(tmp_path, 'actor')}: [Errno 5] Input/output error"
