"""The list of rollouts and what leads on from it: filters, keys, and the way back."""

import pytest

from tests.extensions.viewer.browser.tabs import Tab, run_fragment

pytestmark = pytest.mark.engines
LIST = run_fragment("a-run", "rollouts")


@pytest.fixture
def listed(viewer_tab) -> Tab:
    """The list of all rollouts."""
    viewer_tab.go(LIST)
    assert len(viewer_tab.rollouts()) == 32
    return viewer_tab


def choose(tab: Tab, name: str, value: str) -> None:
    """Sets a filter, and waits until the list has followed."""
    before = tab.fragment
    field = tab.find(f"form [name={name}]")
    if field.evaluate("(element) => element.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)
        field.press("Tab")
    tab.wait_until(lambda: tab.fragment != before)
    tab.wait()


def test_filters_narrow_the_list_and_outlast_a_reload(listed, viewer):
    choose(listed, "outcome", "dropped: zero_advantage")
    choose(listed, "version_from", "2")
    choose(listed, "sort", "worst")
    query = "outcome=dropped%3A+zero_advantage&sort=worst&version_from=2"
    expected = [row["r"] for row in viewer.get(f"runs/a-run/rollouts?{query}")["rows"]]
    assert 0 < len(expected) < 16 and listed.rollouts() == expected
    assert set(listed.texts("tr[data-rollout] .dropped")) == {"dropped: zero_advantage"}
    listed.page.reload()
    listed.wait()
    assert listed.rollouts() == expected
    values = listed.page.eval_on_selector_all(
        "form select, form input[type=number]", "(all) => all.map((one) => [one.name, one.value])"
    )
    assert {"outcome": "dropped: zero_advantage", "version_from": "2", "sort": "worst"}.items() <= dict(
        values
    ).items()
    listed.find("form button").click()
    listed.wait_until(lambda: len(listed.rollouts()) == 32)
    listed.find("form [name=mixed]").check()
    listed.wait_until(lambda: len(listed.rollouts()) == 16)
    assert "mixed=1" in listed.fragment


def test_keys_lead_through_the_rollouts_and_escape_back_to_the_list(listed):
    choose(listed, "sort", "shortest")
    narrowed = listed.fragment
    listed.find("tr[data-rollout]").nth(3).locator("td").nth(4).click()
    listed.wait_for_page("reader")
    order = [*listed.page.evaluate(ORDER)]
    first = listed.fragment
    for key, at in (("j", 1), ("j", 2), ("k", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("k", 0)):
        listed.page.keyboard.press(key)
        listed.wait_until(lambda at=at: listed.fragment == order[at])
        listed.wait()
    assert listed.fragment == first
    listed.page.keyboard.press("Escape")
    listed.wait_for_page("rollouts")
    assert listed.fragment == narrowed


# The fragments of a rollout and of the two that follow it in the stream, by the data.
ORDER = """async () => {
    const order = [location.hash];
    while (order.length < 3) {
      const path = "api/runs/a-run/rollouts/" + order.at(-1).split("/rollouts/")[1];
      order.push("#/r/a-run/rollouts/" + (await (await fetch(path)).json()).next);
    }
    return order;
}"""
