"""Pages of a run under way, which its launcher serves: they keep up with it, and it does not need them."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.run_processes import jobs_of
from tests.forked import Forked
from tests.pipeline.runs import MINIATURE, finish, wait_for
from tests.view.browser.real_runs import REAL, read_to_its_end
from tests.view.browser.tabs import Tab, run_fragment
from tests.view.recorded_run import RecordedRun, member_of
from tests.view.viewers import viewing

pytestmark = pytest.mark.engines


class UnderWay:
    """A run with a viewer, whose next publication can be held up."""

    def __init__(self, directory: Path, folder: Path):
        self.directory = directory
        self._hold = folder / "hold"
        self._held = folder / "held"
        self._outputs = [folder / "stdout", folder / "stderr"]
        self.launcher = Forked(
            "launch.py",
            f"run_dir={directory}",
            *MINIATURE,
            *REAL,
            "view=true",
            "trainer._target_=tests.held_trainer.HeldTrainer",
            f"+trainer.hold={self._hold}",
            f"+trainer.held={self._held}",
            outputs=self._outputs,
        )

    def said(self) -> str:
        return read_to_its_end(self._outputs[1])

    def hold(self) -> None:
        self._hold.touch()
        wait_for(self._held.exists)

    def let_go(self) -> None:
        self._held.unlink(missing_ok=True)


def step_of(tab: Tab) -> int:
    return int(tab.page.get_attribute("[data-step]", "data-step"))


def drawn(tab: Tab, chart: str) -> str:
    """Returns a chart as it is drawn, with its legend."""
    return tab.page.eval_on_selector(
        f"figure[data-chart={chart}]",
        "(figure) => figure.querySelector('canvas').toDataURL() + figure.textContent",
    )


@pytest.fixture
def under_way(run_dir: Path, tmp_path: Path) -> Iterator[UnderWay]:
    run = UnderWay(tmp_path / "run" if run_dir.exists() else run_dir, tmp_path)
    yield run
    run.let_go()
    run.launcher.send_signal(signal.SIGINT)  # of a test that failed; others have waited for the end
    run.launcher.wait()


def test_pages_keep_up_with_a_run_that_does_not_need_their_viewer(under_way, new_tab):
    url = wait_for(lambda: read_to_its_end(under_way.directory / "view" / "url"))
    overview = new_tab()
    overview.open(url)
    wait_for(lambda: f"view the run at {url}" in under_way.said())
    overview.wait_until(lambda: step_of(overview) >= 1)
    listed = new_tab()
    listed.open(url.partition("?")[0] + run_fragment("run", "rollouts"))
    rows = listed.rollouts()

    before = step_of(overview)
    charts = {name: drawn(overview, name) for name in ("reward", "time")}
    overview.wait_until(lambda: step_of(overview) >= before + 2)
    for name, picture in charts.items():
        overview.wait_until(lambda name=name, picture=picture: drawn(overview, name) != picture)
    under_way.hold()

    newer = listed.find("[data-newer]")
    newer.wait_for()
    assert newer.text_content().endswith(" newer") and listed.rollouts() == rows
    newer.click()
    listed.wait_until(lambda: listed.rollouts() != rows)

    os.kill(jobs_of(under_way.directory)["viewer"], signal.SIGKILL)
    overview.wait_until(lambda: "connection lost" in overview.text(".connection"))
    overview.wait_until(lambda: overview.text(".connection") == "")  # it was started again
    seen = step_of(overview)
    under_way.let_go()
    overview.wait_until(lambda: step_of(overview) > seen)
    overview.wait_until(lambda: overview.text("[data-state]") == "ended")
    last = step_of(overview)
    assert overview.loads == listed.loads == 1
    close_with_lost_connections(overview, listed)

    status, err = finish(under_way.launcher)
    assert status == 0, err
    summary = json.loads((under_way.directory / "summary.json").read_text())
    assert summary["optimizer_steps"] == last == 10
    assert summary["rollouts_trained"] == 10 * 32 and summary["accounting_errors"] == []
    assert "warning" not in err


def close_with_lost_connections(*tabs: Tab) -> None:
    """Closes tabs whose viewer was gone for a while, of which nothing else may have gone wrong."""
    for tab in tabs:
        tab.page.close()
        assert all("net::ERR_" in offence for offence in tab.offences)
        tab.offences.clear()


def test_an_interrupted_viewer_ends_quietly_under_an_open_page(tmp_path, tab):
    run = RecordedRun(tmp_path / "run")
    run.begin()
    run.step(0, [[member_of(0, member, 0, float(member)) for member in range(2)]], trained=1)
    with viewing(run.run_dir) as viewer:
        tab.open(viewer.url)
        viewer.process.send_signal(signal.SIGINT)
        _, err = viewer.process.communicate()
        assert viewer.process.returncode == 0
        assert [
            line for line in err.splitlines() if "RuntimeWarning" not in line
        ] == []  # of a forked process
        tab.wait_until(lambda: "connection lost" in tab.text(".connection"))
    close_with_lost_connections(tab)
    run.close()
