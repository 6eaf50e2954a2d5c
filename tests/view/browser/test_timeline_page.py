"""The timeline in the browser: each request is where it was, in the colours of its weights."""

from itertools import groupby, pairwise
from pathlib import Path

import pytest

from contracts.records import Rollout, ServerJoined, VersionSpan, WeightsPublished
from tests.builders import completion
from tests.view.browser.real_runs import records_at, rollouts_of
from tests.view.browser.tabs import run_fragment
from tests.view.browser.timelines import Timeline, colour_of
from tests.view.recorded_run import BEGIN, SERVERS, RecordedRun, member_of, published
from tests.view.viewers import viewing

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def publications(real_run: Path) -> dict[int, WeightsPublished]:
    found = [record for _, record in records_at(real_run, "trainer_events")]
    return {event.version: event for event in found if isinstance(event, WeightsPublished)}


def whole(tab, publications: dict[int, WeightsPublished]) -> Timeline:
    """The timeline of all of the real run, with the requests of the last evaluation's time."""
    versions = sorted(publications)
    return Timeline(tab, "run", publications[0].at - 0.5, publications[versions[-1]].at + 0.5)


def test_each_request_is_where_it_was_and_none_overlaps_another(real_run, publications, real_tab):
    timeline = whole(real_tab, publications)
    rollouts = rollouts_of(real_run)
    bars = timeline.bars
    expected = {
        name
        for name, record in rollouts.items()
        if any(made.ended > timeline.began and made.began < timeline.ended for made in record.completions)
    }
    assert len(bars) == len(expected) > 100 and {bar.r for bar in bars} == expected
    allowed = 1 + 0.001 * timeline.scale
    for bar in bars:
        (made,) = rollouts[bar.r].completions
        assert abs(bar.x - timeline.x_of(made.began)) <= allowed
        assert abs(bar.end - timeline.x_of(made.ended)) <= allowed
        assert bar.versions == [span.version for span in made.spans if span.end > span.start]
    for _, row in groupby(sorted(bars, key=lambda bar: (bar.y, bar.x)), key=lambda bar: bar.y):
        for first, second in pairwise(row):
            ended = first.end if first.width > 1 else first.x  # none is drawn narrower than a pixel
            assert second.x >= ended - 0.01


def test_the_trainer_always_does_something_that_has_a_name(publications, real_tab):
    timeline = whole(real_tab, publications)
    first = timeline.x_of(publications[1].at)
    last = timeline.x_of(publications[max(publications)].at)
    height = real_tab.find("#timeline").bounding_box()["height"]
    below = max(bar.y + bar.height for bar in timeline.bars)
    y = next(y for y in range(int(below), int(height), 6) if named(timeline, (first + last) / 2, y))
    there = [named(timeline, first + (last - first) * at / 100, y) for at in range(1, 100)]
    assert sum(there) >= 0.98 * len(there)


def named(timeline: Timeline, x: float, y: float) -> bool:
    return timeline.point_at(x, y).startswith("trainer-0: ")


def test_a_click_opens_the_rollout_and_escape_leads_back_to_the_same_time(publications, real_tab):
    at = publications[3].at
    timeline = Timeline(real_tab, "run", at - 0.3, at + 0.3)
    before = real_tab.fragment
    bars = timeline.bars
    timeline.click(bars[len(bars) // 2])
    real_tab.wait_for_page("reader")
    assert real_tab.fragment == run_fragment("run", "rollouts", *bars[len(bars) // 2].r.split("/"))
    real_tab.page.keyboard.press("Escape")
    real_tab.wait_for_page("timeline")
    assert real_tab.fragment == before and timeline.bars == bars


def test_keys_choose_a_request_and_open_it(publications, real_tab):
    timeline = Timeline(real_tab, "run", publications[3].at - 0.3, publications[3].at + 0.3)
    real_tab.find("#timeline").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        real_tab.page.keyboard.press(key)
    said = real_tab.text("[data-readout]")
    assert "row 3: " in said
    real_tab.page.keyboard.press("Enter")
    real_tab.wait_for_page("reader")
    assert f"rollout {real_tab.text('h1').removeprefix('Rollout ')} on" in said
    assert timeline.ended


def test_zooming_by_the_wheel_keeps_the_time_under_the_pointer(publications, real_tab):
    timeline = whole(real_tab, publications)
    bar = timeline.bars[50]
    timeline.point_at(bar.x, bar.y)
    real_tab.page.mouse.wheel(0, -700)
    real_tab.wait_until(lambda: [b.width for b in timeline.bars if b.r == bar.r] > [2 * bar.width])
    (zoomed,) = [b for b in timeline.bars if b.r == bar.r]
    assert abs(zoomed.x - bar.x) <= 2


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


def test_a_run_without_weights_says_so_until_they_come(tmp_path, tab):
    run = RecordedRun(tmp_path / "run")
    run.append("launcher_events", ServerJoined(name="server-0", url=SERVERS[0], node="here", engine="e"))
    with viewing(run.run_dir) as viewer:
        tab.open(viewer.url)
        tab.go(run_fragment("run", "timeline"))
        assert "No weights were published yet" in tab.text()
        run.append("rollouts", across_an_update(7.75, 4))
        run.append("trainer_events", published(0), published(1))
        tab.wait_until(lambda: tab.find("#timeline").count() == 1)
        tab.page.close()
    run.close()
