"""One browser for all tests of this folder, and a tab for each, in which nothing may go wrong."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.view.browser.real_runs import UNHURRIED, run_to_its_end
from tests.view.browser.tabs import Tab
from tests.view.viewers import Viewer, viewing

SIZE = {"width": 1280, "height": 800}
PATIENCE_MS = 30_000


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "there is no chromium: `make chromium`"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """Yields the context of all tabs, which has the cookies of the viewers."""
    context = chromium.new_context(viewport=SIZE, device_scale_factor=1, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()


@pytest.fixture
def new_tab(context: BrowserContext) -> Iterator[Callable[[], Tab]]:
    """Yields a function that opens a tab. In the end none may have an offence, or have asked another host."""
    tabs = []

    def open_tab() -> Tab:
        tabs.append(Tab(context))
        return tabs[-1]

    yield open_tab
    for tab in tabs:
        tab.page.close()
    for tab in tabs:
        assert tab.offences == []
        assert tab.hosts <= {"127.0.0.1"}


@pytest.fixture
def tab(new_tab: Callable[[], Tab]) -> Tab:
    return new_tab()


@pytest.fixture(scope="session")
def real_run(tmp_path_factory) -> Path:
    """A run by the real launcher, of two servers, that has ended. Its requests last over updates."""
    run = tmp_path_factory.mktemp("real") / "run"
    run_to_its_end(run, *UNHURRIED, "max_steps=8", "world.servers=2", "+domain.agreeing=0.2")
    return run


@pytest.fixture(scope="session")
def real_viewer(real_run: Path) -> Iterator[Viewer]:
    with viewing(real_run) as viewer:
        yield viewer
