"""Each page has its main fact in the first screen: light, dark, and 400 pixels wide.

To look at the screenshots, run this file with `-m engines --basetemp=DIRECTORY`.
"""

import shutil

import pytest

from tests.extensions.viewer.browser.tabs import READY, Tab, run_fragment
from tests.extensions.viewer.viewers import viewing

pytestmark = pytest.mark.engines
FACTS = {  # page -> what it is for
    "run": ".learnt",
    "timeline": "#timeline",
    "servers": "tbody tr",
    "rollouts": "tr[data-rollout] td.line",
    "reader": "[data-verdict]",
    "group": ".member [data-verdict], .member .score",
    "groups": ".equation",
    "files": "tbody tr",
    "runs": "tr[data-run]",
    "compare": "table[aria-label=results] tbody tr:nth-child(3)",
}
RUN = {"run": [], "reader": ["rollouts", "train", 0], "group": ["groups", 0]}
OTHERS = {"runs": "#/", "compare": "#/compare?runs=a-run&runs=another"}
SCREENS = {"light": (1280, "light"), "dark": (1280, "dark"), "narrow": (400, "light")}
HEIGHT = 800


@pytest.mark.parametrize("screen", SCREENS)
def test_each_page_has_its_main_fact_in_the_first_screen(screen, runs_directory, chromium, tmp_path):
    directory = tmp_path / "runs"
    shutil.copytree(runs_directory / "a-run", directory / "a-run", ignore=shutil.ignore_patterns("view"))
    shutil.copytree(directory / "a-run", directory / "another")
    width, scheme = SCREENS[screen]
    context = chromium.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    with viewing(directory) as viewer:
        tab = Tab(context)
        tab.open(viewer.url)
        for page, fact in FACTS.items():
            tab.go(OTHERS.get(page) or run_fragment("a-run", *RUN.get(page, [page])))
            tab.page.wait_for_selector(READY)
            box = tab.find(fact).first.bounding_box()
            tab.page.screenshot(path=tmp_path / f"{page}-{screen}.png")
            assert box and box["y"] + min(box["height"], 100) <= HEIGHT, page
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, page
        tab.assert_harmless()
    context.close()
