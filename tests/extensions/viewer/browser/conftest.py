"""One browser for all tests of this folder, and a tab for each, in which nothing may go wrong."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.extensions.viewer.browser.tabs import Tab, new_browser, new_context, shared_tab
from tests.extensions.viewer.viewers import Viewer


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


@pytest.fixture(scope="module")
def viewer_tab(viewer: Viewer, context: BrowserContext) -> Iterator[Tab]:
    """A tab with the viewer of the recorded run, which tests share: loading takes a second."""
    with shared_tab(context, viewer) as tab:
        yield tab
