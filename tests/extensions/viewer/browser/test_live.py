"""Pages of a run under way keep up with it, whatever becomes of its viewer."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extensions.viewer.browser.tabs import Tab, run_fragment
from tests.extensions.viewer.recorded_run import RecordedRun, member_of
from tests.extensions.viewer.viewers import viewing

pytestmark = pytest.mark.engines


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RecordedRun]:
    """A run whose launcher is alive, which is this process, after two steps."""
    run = RecordedRun(tmp_path / "run")
    run.begin()
    for version in range(2):
        step(run, version)
    yield run
    run.close()


def step(run: RecordedRun, version: int) -> None:
    run.step(version, [[member_of(version, member, version, float(member)) for member in range(2)]], 1)


def step_of(tab: Tab) -> int:
    return int(tab.page.get_attribute("[data-step]", "data-step"))


def drawn(tab: Tab, chart: str) -> str:
    """Returns a chart as it is drawn, with its legend."""
    return tab.page.eval_on_selector(
        f"figure[data-chart={chart}]",
        "(figure) => figure.querySelector('canvas').toDataURL() + figure.textContent",
    )


def test_pages_keep_up_with_a_run_also_after_their_viewer_is_started_again(run, new_tab):
    with viewing(run.run_dir, "--end-with-run") as viewer:
        overview, listed = new_tab(), new_tab()
        overview.open(viewer.url)
        assert step_of(overview) == 2
        listed.open(viewer.url.partition("?")[0] + run_fragment("run", "rollouts"))
        rows = listed.rollouts()
        charts = {name: drawn(overview, name) for name in ("reward", "time")}
        step(run, 2)
        overview.wait_until(lambda: step_of(overview) == 3)
        for name, picture in charts.items():
            overview.wait_until(lambda name=name, picture=picture: drawn(overview, name) != picture)
        newer = listed.find("[data-newer]")
        newer.wait_for()
        assert newer.text_content().endswith(" newer") and listed.rollouts() == rows
        newer.click()
        listed.wait_until(lambda: listed.rollouts() != rows)
        os.kill(viewer.process.pid, signal.SIGKILL)
        viewer.process.wait()
        overview.wait_until(lambda: "connection lost" in overview.text(".connection"))
        with viewing(run.run_dir, "--end-with-run"):
            overview.wait_until(lambda: overview.text(".connection") == "")
            step(run, 3)
            overview.wait_until(lambda: step_of(overview) == 4)
            run.end(4)
            overview.wait_until(lambda: overview.text("[data-state]") == "ended")
    assert overview.loads == listed.loads == 1
    close_with_lost_connections(overview, listed)


def close_with_lost_connections(*tabs: Tab) -> None:
    """Closes tabs whose viewer was gone for a while, of which nothing else may have gone wrong."""
    for tab in tabs:
        tab.page.close()
        assert all("net::ERR_" in offence for offence in tab.offences)
        tab.offences.clear()
