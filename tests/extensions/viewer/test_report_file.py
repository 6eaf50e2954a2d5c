"""The report in one file: what it holds, that no text of the run ends an element, and what it may run."""

import hashlib
import json
import re
from base64 import b64encode

import pytest

from extensions.viewer.__main__ import main
from tests.extensions.viewer.recorded_run import RecordedRun, member_of, small_run

END = "</script><script>alert(1)</script><!--<script>"


@pytest.fixture
def report(tmp_path) -> str:
    """The report of a run with a hostile problem."""
    run = small_run(tmp_path / "run")
    again = RecordedRun(run.run_dir)
    again.append("rollouts", *(member_of(0, member, 0, float(member), problem_id=END) for member in (4, 5)))
    again.close()
    out = tmp_path / "report.html"
    assert main([str(run.run_dir), "--export", str(out)]) == 0
    return out.read_text()


def recorded(report: str) -> dict:
    return json.loads(
        re.search(r'<script type="application/json" id="recorded">(.*?)</script>', report, re.S)[1]
    )


def test_it_holds_whole_groups_whose_links_stay_in_the_file(report):
    answers = recorded(report)
    here = "api/runs/run"
    assert {
        f"{here}{page}" for page in ("", "/charts", "/timeline", "/servers", "/accounting", "/files")
    } <= {*answers}
    rows = answers[f"{here}/rollouts"]["rows"]
    assert {row["group"] for row in rows} == {0, 2, 4, 6}  # whose rewards differ
    for row in rows:
        rollout = answers[f"{here}/rollouts/{row['r']}"]
        for name in ("previous", "next"):
            assert rollout[name] is None or f"{here}/rollouts/{rollout[name]}" in answers
        assert f"{here}/groups/{row['group']}" in answers
    assert any(row["problem"] == END for row in rows)


def test_no_text_of_the_run_ends_its_element(report):
    assert report.count("<script") == report.count("</script>") == 2
    assert "<!--" not in report


def test_the_policy_allows_its_own_script_and_sheet_alone(report):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', report)[1].replace(
        "&#x27;", "'"
    )
    for name, text in (
        ("script-src", re.search(r"<script>(.*?)</script>", report, re.S)[1]),
        ("style-src", re.search(r"<style>(.*?)</style>", report, re.S)[1]),
    ):
        digest = b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
