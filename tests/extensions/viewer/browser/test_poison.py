"""A run whose every text is hostile is shown as text, by the viewer and in an exported report."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from pipelinerl.paths import ROOT
from tests.extensions.viewer.browser.poison import FILE, LONG, POISON, poisoned_run, shown
from tests.extensions.viewer.browser.tabs import Tab, run_fragment, shared_tab
from tests.extensions.viewer.recorded_run import small_run
from tests.extensions.viewer.viewers import Viewer, viewing

pytestmark = pytest.mark.engines
TEXT = shown(POISON)
NAME = os.fsencode(FILE).decode(errors="replace")  # as pages know the run
COMPARED = urlencode([("runs", NAME), ("runs", "another")])
SCRIPTS = "document.querySelectorAll('script').length"
FOREIGN_LINKS = """[...document.querySelectorAll("[href], [src], [action]")]
    .map((element) => element.getAttribute("href") ?? element.getAttribute("src") ?? "action")
    .filter((link) => !/^(#|api\\/|static\\/|data:,$)/.test(link))"""
HANDLERS = """[...document.querySelectorAll("*")].flatMap((element) => [...element.attributes])
    .filter((attribute) => attribute.name.startsWith("on")).map((attribute) => attribute.name)"""
NEVER_MADE = "iframe, object, embed, img, base, meta[http-equiv=refresh], [srcdoc], [style*=url]"


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory) -> Path:
    """A directory of runs, of which one is hostile in everything, its name included."""
    directory = tmp_path_factory.mktemp("runs")
    poisoned_run(directory / FILE)
    small_run(directory / "another", steps=1)
    return directory


@pytest.fixture(scope="module")
def hostile(poisoned) -> Iterator[Viewer]:
    with viewing(poisoned) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def hostile_tab(hostile, context) -> Iterator[Tab]:
    with shared_tab(context, hostile) as tab:
        yield tab


@pytest.fixture(scope="module")
def report(poisoned, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    command = [sys.executable, "-m", "extensions.viewer", poisoned / FILE, "--export", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


class Watched:
    """A tab in which hostile text stays text, whichever page it shows."""

    def __init__(self, tab: Tab):
        self.tab = tab
        self._scripts = tab.page.evaluate(SCRIPTS)

    def go(self, *parts: object) -> str:
        """Shows a page of the run, checks what it is made of, and returns all its text."""
        self.tab.go(run_fragment(NAME, *parts))
        return self.look()

    def look(self) -> str:
        page = self.tab.page
        assert page.evaluate(SCRIPTS) == self._scripts
        assert self.tab.find(NEVER_MADE).count() == 0
        assert page.evaluate(FOREIGN_LINKS) == []
        assert page.evaluate(HANDLERS) == []
        assert self.tab.texts("[role=alert]") == []
        assert shown(page.title()) == page.title()
        assert self.tab.offences == []
        return self.tab.text()


def visit_all(watched: Watched, rollouts: dict[str, str]) -> None:
    """Visits every page of the run; each shows the hostile text in every place that has it.

    rollouts: the name by which each rollout is asked for, by its identifier.
    """
    tab = watched.tab
    text = watched.go()
    assert text.count(TEXT) >= 4  # what bounds it, what was dropped, a set, the name of an alarm
    tab.find("details.further summary").click()
    tab.wait_until(lambda: tab.find("details.further figure").count() >= 4)
    assert TEXT in "".join(tab.texts("details.further figcaption"))
    assert shown(NAME) in tab.text("#head")
    watched.go("timeline")
    visit_timeline(watched)
    assert watched.go("servers").count(TEXT) == 4  # name, address, engine and node
    text = watched.go("rollouts")
    assert text.count(TEXT) >= 4 + 2 + 2  # rollouts, status, outcome
    assert "<script>" in "".join(tab.texts("td.line"))
    assert TEXT in watched.go("groups")
    for group in (0, 1):
        text = watched.go("groups", group)
        assert TEXT in text and "<script>" in "".join(tab.texts("article .sample"))
        assert TEXT in tab.text(".prompt-text")
    for identifier, name in rollouts.items():
        text = watched.go("rollouts", *name.split("/"))
        assert shown(identifier) in text and text.count(TEXT) >= 4 - (LONG in text)
        assert TEXT in tab.text(".prompt-text")
    text = watched.go("files")
    for file in ("config.yaml", "summary.json", "judging.json"):
        assert "onerror=alert" in watched.go("files", file)


def visit_timeline(watched: Watched) -> None:
    """Points at each bar of the timeline: what it is, is said as text."""
    tab = watched.tab
    bars = tab.page.evaluate("document.getElementById('timeline').bars")
    assert len(bars) >= 3
    box = tab.find("#timeline").bounding_box()
    for bar in bars:
        tab.page.mouse.move(box["x"] + bar["x"] + bar["width"] / 2, box["y"] + bar["y"] + bar["height"] / 2)
        assert tab.text("[data-readout]").count(TEXT) >= 2  # the rollout, and its server
    tab.page.mouse.move(box["x"] + 300, box["y"] + box["height"] - 40)
    assert TEXT in tab.text("[data-readout]")
    watched.look()


def names_of(rows: list[dict]) -> dict[str, str]:
    return {row["id"]: row["r"] for row in rows}


def test_every_page_shows_hostile_text_as_text(hostile, hostile_tab):
    hostile_tab.go("#/")
    watched = Watched(hostile_tab)
    assert shown(NAME) in watched.look()
    hostile_tab.go(f"#/compare?{COMPARED}")
    text = watched.look()
    assert TEXT in text and shown(NAME) in text
    rows = [row for stream in ("train", "held-out") for row in list_of(hostile, stream)]
    assert len(rows) == 5
    visit_all(watched, names_of(rows))
    assert hostile_tab.hosts == {"127.0.0.1"}


def test_a_report_shows_hostile_text_as_text_and_asks_for_nothing(report, hostile, tab):
    tab.open(report.as_uri())
    assert tab.asked == [report.as_uri()]
    visit_all(Watched(tab), names_of(list_of(hostile, "train")))
    assert {url for url in tab.asked if not url.startswith("data:")} == {report.as_uri()}


def list_of(viewer: Viewer, stream: str) -> list[dict]:
    return viewer.get(f"runs/{quote(NAME, safe='')}/rollouts?stream={stream}")["rows"]


def test_logs_with_broken_bytes_and_endless_lines_are_shown(hostile, hostile_tab):
    watched = Watched(hostile_tab)
    text = watched.go("files")
    assert shown(NAME) in text
    text = watched.go("files", "logs", NAME)
    assert text.count(TEXT) == 9 and "\ufffd" in text
    text = watched.go("files", "logs", "long.log")
    assert text.endswith(TEXT) and text.count("x") > 100_000
