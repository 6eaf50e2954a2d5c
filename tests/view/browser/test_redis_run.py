"""A run on Redis has the same pages as one in files, and resumes while they are open."""

import pytest

from contracts.records import Rollout
from tests.pipeline.runs import finish, records, resume
from tests.view.browser.real_runs import run_to_its_end
from tests.view.browser.tabs import Tab, run_fragment
from tests.view.viewers import viewing

pytestmark = pytest.mark.engines


def test_a_run_on_redis_has_all_pages_and_resumes_under_them(tmp_path, tab):
    run = tmp_path / "run"
    run_to_its_end(run, "streams=redis", "max_steps=2")
    recorded = [record for record in records(run, "rollouts") if isinstance(record, Rollout)]
    with viewing(run) as viewer:
        tab.open(viewer.url)
        assert step_at(tab) == 2
        tab.go(run_fragment("run", "rollouts"))
        assert f"{len(recorded)} rollouts in all" in tab.text()
        newest = recorded[-1]
        tab.find("tr[data-rollout] a").nth(1).click()
        tab.wait_for_page("reader")
        assert tab.text("h1") == f"Rollout {newest.rollout_id}"
        ids = tab.page.eval_on_selector_all(".token", "(all) => all.map((one) => one.dataset.ids)")
        assert ",".join(ids) == ",".join(map(str, newest.completions[0].token_ids))
        tab.go(run_fragment("run", "groups", newest.group_id))
        assert tab.find("article").count() == 4
        tab.wait_until(lambda: f"group {newest.group_id};" in tab.text("[data-story]"))
        tab.go(run_fragment("run", "groups"))
        assert tab.page.get_attribute(".equation", "data-holds") == "true"
        tab.go(run_fragment("run", "servers"))
        assert tab.find("tr[data-server]").count() == 1
        tab.go(run_fragment("run", "timeline"))
        assert tab.page.evaluate("document.getElementById('timeline').bars.length") > 0

        status, err = finish(resume(run, "max_steps=4"))
        assert status == 0, err
        tab.wait_until(lambda: step_at(tab) == 4)
        assert "resumed from version 2" in tab.text(".marks")


def step_at(tab: Tab) -> int:
    """Returns the step that the page of the run shows when one comes to it."""
    tab.go(run_fragment("run"))
    return int(tab.page.get_attribute("[data-step]", "data-step"))
