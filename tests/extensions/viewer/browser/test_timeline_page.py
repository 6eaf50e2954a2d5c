"""The timeline in the browser: each request is where it was, in the colours of its weights."""

from itertools import groupby, pairwise

import pytest

from contracts.records import Rollout, VersionSpan
from tests.builders import completion
from tests.extensions.viewer.browser.tabs import Tab, run_fragment
from tests.extensions.viewer.browser.timelines import Timeline, colour_of
from tests.extensions.viewer.recorded_run import BEGIN, SERVERS, STEP_S, RecordedRun, member_of, published
from tests.extensions.viewer.viewers import viewing

pytestmark = pytest.mark.engines


def whole(tab: Tab) -> Timeline:
    """The timeline of all of the recorded run."""
    return Timeline(tab, "a-run", BEGIN - 0.5, BEGIN + 5 * STEP_S)


def around_version_3(tab: Tab) -> Timeline:
    return Timeline(tab, "a-run", BEGIN + 3 * STEP_S - 3, BEGIN + 3 * STEP_S + 3)


def test_each_request_is_where_it_was_and_none_overlaps_another(viewer, records, viewer_tab):
    timeline = whole(viewer_tab)
    names = [row["r"] for row in reversed(viewer.get("runs/a-run/rollouts?sort=newest")["rows"])]
    rollouts = dict(zip(names, records, strict=True))
    bars = timeline.bars
    assert len(bars) == len(rollouts) and {bar.r for bar in bars} == rollouts.keys()
    allowed = 1 + 0.001 * timeline.scale
    for bar in bars:
        (made,) = rollouts[bar.r].completions
        assert abs(bar.x - timeline.x_of(made.began)) <= allowed
        assert abs(bar.end - timeline.x_of(made.ended)) <= allowed
        assert bar.versions == [span.version for span in made.spans]
    for _, row in groupby(sorted(bars, key=lambda bar: (bar.y, bar.x)), key=lambda bar: bar.y):
        assert all(second.x >= first.end - 0.01 for first, second in pairwise(row))


def test_a_click_opens_the_rollout_and_escape_leads_back_to_the_same_time(viewer_tab):
    timeline = around_version_3(viewer_tab)
    before = viewer_tab.fragment
    bars = timeline.bars
    timeline.click(bars[len(bars) // 2])
    viewer_tab.wait_for_page("reader")
    assert viewer_tab.fragment == run_fragment("a-run", "rollouts", *bars[len(bars) // 2].r.split("/"))
    viewer_tab.page.keyboard.press("Escape")
    viewer_tab.wait_for_page("timeline")
    assert viewer_tab.fragment == before and timeline.bars == bars


# The begin of a request, its first token of version 1, and where that version begins to be shown.
BORDERS = [(7.75, 4, 9.75), (5.0, 4, 9.5), (9.0, 4, 10.0), (6.25, 0, 9.5)]


def test_the_border_between_two_versions_lies_in_the_time_of_the_publication(tmp_path, tab):
    run = RecordedRun(tmp_path / "run")
    run.begin()
    run.append("rollouts", *(across_an_update(began, first) for began, first, _ in BORDERS))
    run.append("trainer_events", published(1), published(2))  # version 1 from 9.5 s to 10 s
    run.end(2)
    with viewing(run.run_dir) as viewer:
        tab.open(viewer.url)
        timeline = Timeline(tab, "run", BEGIN + 4, BEGIN + 16)
        bars = timeline.bars
        assert len(bars) == len(BORDERS)
        rows = timeline.colours(bars)
        for began, first, expected in BORDERS:
            (bar,) = [bar for bar in bars if abs(timeline.x_of(BEGIN + began) - bar.x) < 1]
            row = rows[bar.y]
            border = row.index(colour_of(1))
            assert (row.count(colour_of(0)) > 40) == (first > 0) and row.count(colour_of(1)) > 40
            assert colour_of(0) not in row[border:]
            assert abs(border - timeline.x_of(BEGIN + expected)) <= 1


def across_an_update(began: float, first: int) -> Rollout:
    """A request of ten tokens, half a second each, of version 1 from the token `first` on."""
    member = int(4 * began)
    began += BEGIN
    spans = [VersionSpan(0, 0, first), VersionSpan(1, first, 10)]
    made = completion([1], [*range(2, 12)], spans=spans, server=SERVERS[0], began=began, ended=began + 5)
    return member_of(0, member, 0, 1.0, completions=[made], started_at=began, finished_at=made.ended)


def test_merged_requests_open_at_a_click(tmp_path, tab):
    run = RecordedRun(tmp_path / "run")
    run.begin()
    for version in range(6):
        run.step(
            version, [[member_of(version * 1000 + at, at, version, 1.0) for at in range(700)]], trained=1
        )
    run.end(6)
    with viewing(run.run_dir) as viewer:
        tab.open(viewer.url)
        tab.go(f"{run_fragment('run', 'timeline')}?began={BEGIN - 1}&ended={BEGIN + 800}")
        canvas = tab.find("#timeline")
        assert "are merged" in tab.text(".note") and tab.page.evaluate("timeline.bars.length") == 0
        canvas.hover(position={"x": 400, "y": 60})
        assert "requests at a time, weights v" in tab.text("[data-readout]")
        canvas.click(position={"x": 640, "y": 60})
        tab.wait_until(lambda: tab.page.evaluate("timeline.bars.length"))
        assert tab.text(".note") == ""
