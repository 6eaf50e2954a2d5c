"""One browser for all tests of this folder, and a tab for each, in which nothing may go wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.view.browser.real_runs import REAL, run_to_its_end
from tests.view.browser.tabs import Tab, new_browser, new_context, shared_tab
from tests.view.viewers import Viewer, viewing


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = new_browser(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """Yields the context of all tabs, which has the cookies of the viewers."""
    context = new_context(chromium)
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
        tab.assert_harmless()


@pytest.fixture
def tab(new_tab: Callable[[], Tab]) -> Tab:
    return new_tab()


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory) -> Path:
    """Where the first test that needs a real run has it made."""
    return tmp_path_factory.mktemp("real") / "run"


@pytest.fixture(scope="session")
def real_run(run_dir: Path) -> Path:
    """A run by the real launcher, of two servers, that has ended: that of `test_live`, if it came before."""
    if not run_dir.exists():
        run_to_its_end(run_dir, *REAL)
    return run_dir


@pytest.fixture(scope="session")
def real_viewer(real_run: Path) -> Iterator[Viewer]:
    with viewing(real_run) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def real_tab(real_viewer: Viewer, context: BrowserContext) -> Iterator[Tab]:
    """A tab with the viewer of the real run, which the tests of a module share: loading takes a second."""
    with shared_tab(context, real_viewer) as tab:
        yield tab
