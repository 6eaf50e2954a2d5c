"""Who may see the pages: the browser that opened the URL with the token, which then hides the token."""

import pytest

pytestmark = pytest.mark.engines


@pytest.fixture(autouse=True)
def no_cookies(context):
    context.clear_cookies()


def test_the_token_is_neither_in_the_address_nor_readable_by_the_page(viewer, new_tab, context):
    tab = new_tab()
    tab.page.goto("about:blank")
    tab.open(viewer.url)
    token = viewer.url.partition("token=")[2]
    assert tab.page.url == f"http://127.0.0.1:{viewer.port}/#/r/a-run"
    seen = tab.page.evaluate(
        """() => [document.cookie, document.referrer, document.URL, document.documentElement.outerHTML,
            ...performance.getEntries().map((entry) => entry.name),
            JSON.stringify({...localStorage, ...sessionStorage})]"""
    )
    assert seen[:2] == ["", ""]
    assert not [text for text in seen if token in text]
    (cookie,) = context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and token not in cookie["value"]
    tab.page.go_back()
    assert tab.page.url == "about:blank"
    later = new_tab()
    later.open(f"http://127.0.0.1:{viewer.port}/#/r/a-run/rollouts")
    assert len(later.rollouts()) == 32
