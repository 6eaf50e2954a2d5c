"""A page in the browser that takes note of what no page may do."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

from playwright.sync_api import Browser, BrowserContext, Locator, Page, Playwright

from tests.extensions.viewer.viewers import Viewer
from tests.limits import HANG_S

SIZE = {"width": 1280, "height": 800}
PATIENCE_MS = 1000 * HANG_S
READY = "body[data-ready=true]"
NOTE_VIOLATIONS = """
    addEventListener("securitypolicyviolation", (event) => {
      console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
    });
"""
GO = """(fragment) => {
    document.body.dataset.ready = "false";
    if (location.hash === fragment) {
      window.dispatchEvent(new Event("hashchange"));
    } else {
      location.hash = fragment;
    }
}"""


def new_browser(playwright: Playwright) -> Browser:
    """Starts the machine's own Chromium."""
    path = shutil.which("chromium")
    assert path, "there is no chromium: `make chromium`"
    return playwright.chromium.launch(
        executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else []
    )


def new_context(browser: Browser) -> BrowserContext:
    """Returns a context without cookies, as large as the pictures in the documents."""
    context = browser.new_context(viewport=SIZE, device_scale_factor=1, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    return context


class Tab:
    """A tab with the viewer's pages. offences: dialogs, errors and violations of the policy, in words."""

    def __init__(self, context: BrowserContext):
        self.page: Page = context.new_page()
        self.offences: list[str] = []
        self.asked: list[str] = []  # URLs of all requests
        self.loads = 0  # documents
        self.page.add_init_script(NOTE_VIOLATIONS)
        self.page.on("dialog", self._note_dialog)
        self.page.on("pageerror", lambda error: self.offences.append(f"error: {error}"))
        self.page.on("console", self._note_message)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("websocket", lambda socket: self.asked.append(socket.url))
        self.page.on("popup", lambda popup: self.offences.append(f"popup: {popup.url}"))
        self.page.on("domcontentloaded", self._note_load)

    def assert_harmless(self) -> None:
        """Fails if anything has gone wrong, or another host was asked."""
        assert self.offences == []
        assert self.hosts <= {"127.0.0.1"}

    def open(self, url: str) -> None:
        """Loads a page of the viewer, and waits until it is filled."""
        self.page.goto(url)
        self.wait()

    def go(self, fragment: str) -> None:
        """Shows another page of the viewer without loading it."""
        self.page.evaluate(GO, fragment)
        self.wait()

    def wait(self) -> None:
        self.page.wait_for_selector(READY)

    def wait_for_page(self, name: str) -> None:
        """Waits until the page of this name is filled."""
        self.page.wait_for_selector(f"body[data-page={name}][data-ready=true]")

    def find(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def text(self, selector: str = "#main") -> str:
        """Returns all text of an element, also what is scrolled out of sight."""
        return self.page.eval_on_selector(selector, "(element) => element.textContent")

    def texts(self, selector: str) -> list[str]:
        return self.page.eval_on_selector_all(selector, "(all) => all.map((one) => one.textContent)")

    def rollouts(self) -> list[str]:
        """Returns the rollouts of the list, from its top."""
        return self.page.eval_on_selector_all(
            "tr[data-rollout]", "(rows) => rows.map((row) => row.dataset.rollout)"
        )

    @property
    def fragment(self) -> str:
        return self.page.evaluate("location.hash")

    @property
    def hosts(self) -> set[str]:
        """The hosts that were asked for anything."""
        return {host for url in self.asked if (host := urlsplit(url).hostname)}

    def wait_until(self, condition: Callable[[], object]) -> object:
        """Returns what the condition returns, once that is true, while the page lives on."""
        while not (found := condition()):
            self.page.wait_for_timeout(50)  # lets the page's events come
        return found

    def _note_dialog(self, dialog) -> None:
        self.offences.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note_message(self, message) -> None:
        if message.type in ("error", "warning"):
            self.offences.append(f"{message.type}: {message.text}")

    def _note_load(self, _: object) -> None:
        self.loads += 1


@contextmanager
def shared_tab(context: BrowserContext, viewer: Viewer) -> Iterator[Tab]:
    """Yields a tab with a viewer's pages, which some tests share."""
    tab = Tab(context)
    tab.open(viewer.url)
    yield tab
    tab.page.close()
    tab.assert_harmless()


def run_fragment(name: str, *parts: object) -> str:
    """Returns the fragment of a page of a run."""
    return "#/" + "/".join(["r", *(quote(str(part), safe="") for part in (name, *parts))])
