"""The timeline of a run: which requests are in which row, and what the picture shows of them."""

import re

import pytest
from msgspec.structs import replace

from contracts.records import VersionSpan
from extensions.viewer.timeline import read_timeline
from extensions.viewer.timeline_plot import colour, draw_timeline
from extensions.viewer.tracks import rows
from pipelinerl.streams.events import FRESH_RUN
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout
from tests.extensions.viewer.recorded_run import published


def request(began: float, ended: float, server: str = "a", **changes):
    return completion([1], [2, 3, 4, 5], began=began, ended=ended, server=server, **changes)


@pytest.fixture
def streams(tmp_path):
    """Versions 0 to 8 at 100, 110, ... seconds, and a request in each of these times."""
    streams = FileStreams(tmp_path / "streams")
    with_weights = streams.writer("trainer_events")
    rollouts = streams.writer("rollouts")
    for version in range(9):
        with_weights.append(published(version, 100.0 + 10 * version))
        across = [VersionSpan(version + i, i, i + 1) for i in range(4)]
        made = request(109.0 + 10 * version, 113.0 + 10 * version, spans=across)
        rollouts.append(rollout(version, completions=[made]))
    return streams


def test_a_row_holds_one_request_at_a_time_of_one_server():
    first = request(0, 4)
    beside = request(1, 2)
    after = request(2, 3)
    elsewhere = request(5, 6, server="b")
    assert rows([elsewhere, after, first, beside]) == [[first], [beside, after], [elsewhere]]


def test_the_time_between_two_versions_has_the_requests_that_touch_it(streams):
    timeline = read_timeline(streams, 2, 3)
    assert (timeline.began, timeline.ended) == (120.0, 130.0)
    assert [event.version for event in timeline.published] == [2, 3]
    assert [[made.began for made in row] for row in timeline.rows] == [[119.0, 129.0]]


def test_versions_that_a_resumption_undid_are_left_out(streams):
    again = streams.writer("trainer_events")
    resumed = replace(FRESH_RUN, version=2, ends={"trainer_events": again.end})
    streams.writer("launcher_events").append(resumed)
    for version in (2, 3):
        again.append(published(version, 300.0 + 10 * version))
    timeline = read_timeline(streams)
    assert [event.version for event in timeline.published] == [0, 1, 2, 3]
    assert (timeline.began, timeline.ended) == (100.0, 330.0)


def test_the_picture_colours_each_span_by_its_version(streams, tmp_path):
    path = tmp_path / "timeline.svg"
    draw_timeline(path, read_timeline(streams, 1, 2), rows=16)
    drawn = path.read_text()
    assert {"v1", "v2"} <= set(re.findall(r">(v\d)<", drawn))
    used = {version for version in range(6) if f"fill: {colour(version)}" in drawn}
    assert used == {0, 1, 2, 3, 4}  # of two requests: one across versions 0 to 3, one across 1 to 4
