"""Who may ask the viewer, and what: the token, the Host header, the method, and paths."""

import psutil
import pytest

from extensions.viewer.server.guard import HEADERS
from tests.extensions.viewer.viewers import viewing

RUN = "/api/runs/a-run"


def test_without_the_token_nothing_is_shown(viewer):
    for path in ("/", "/api/runs", RUN, f"{RUN}/stream", "/static/main.js", "/nothing"):
        answer = viewer.ask(path)
        assert answer.status == 401 and b"by the URL that it printed" in answer.read()
    for cookie in ("", "x", viewer.cookie[:-1], viewer.cookie + "0", viewer.cookie.upper(), 'a="'):
        assert viewer.ask(RUN, Cookie=cookie).status == 401, cookie


@pytest.mark.parametrize("token", ["", "x", "%ff"])
def test_a_wrong_token_is_refused(viewer, token):
    answer = viewer.ask(f"/?token={token}")
    assert answer.status == 401 and "set-cookie" not in answer.headers


def test_the_token_is_taken_out_of_the_address(viewer):
    token = viewer.url.partition("token=")[2]
    answer = viewer.ask(f"/api/runs?a=1&token={token}&b=%2F")
    assert answer.status == 303 and answer.headers["location"] == "/api/runs?a=1&b=%2F"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and token.lower() not in cookie
    elsewhere = viewer.ask(f"//evil.example/?token={token}")
    assert elsewhere.headers.get("location", "/").startswith("/") and "//" not in elsewhere.headers.get(
        "location", ""
    )


@pytest.mark.parametrize(("host", "status"), [
     ("127.0.0.1:1", 200), ("localhost", 200), ("localhost:99999", 200), ("[::1]:80", 200),
     ("evil.example", 400), ("127.0.0.1.evil.example:80", 400), ("localhost:80@evil.example", 400),
     ("", 400), ("localhost.", 400),
])  # fmt: skip
def test_only_this_machines_names_are_answered(viewer, host, status):
    assert viewer.ask("/api/runs", Cookie=viewer.cookie, Host=host).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_only_get_is_answered(viewer, method):
    assert viewer.ask("/api/runs", method, Cookie=viewer.cookie).status == 405


@pytest.mark.parametrize("path", [
     "/api/runs/..%2fa-run", "/api/runs/no-run", "/api/runs/link", "/api/runs/%00",
     f"{RUN}/files/..%2fconfig.yaml", f"{RUN}/files/logs%2f..%2fconfig.yaml", f"{RUN}/files/%2fetc%2fpasswd",
     f"{RUN}/files/redis/url", "/static/..%2fserver%2fguard.py", "/static/../server/guard.py",
     "/static/%2e%2e/%2e%2e/config.py", f"{RUN}/groups/999999", f"{RUN}/rollouts/train/1",
     f"{RUN}/rollouts/train/99999999",
])  # fmt: skip
def test_what_is_not_shown_is_not_found(viewer, path):
    answer = viewer.ask(path, Cookie=viewer.cookie)
    assert answer.status == 404, answer.read()


@pytest.mark.parametrize("path", [
     "rollouts?reward_from=abc", "rollouts?reward_from=nan", "rollouts?version_from=99999999999999999999",
     "rollouts?sort=colour", "rollouts?unknown=1", "rollouts?stream=rows", "rollouts?after=1",
     "rollouts/rows/0", "rollouts/train/x", "rollouts/train/0?turn=-1", "groups/x",
     "timeline?began=inf&ended=1",
])  # fmt: skip
def test_a_question_that_makes_no_sense_gets_a_line(viewer, path):
    answer = viewer.get(f"runs/a-run/{path}", status=400)
    assert len(answer["error"]) > 10 and "\n" not in answer["error"]


def test_every_answer_forbids_the_browser_to_run_what_is_not_the_viewers(viewer):
    for path, cookie in (("/", viewer.cookie), (RUN, viewer.cookie), ("/", ""), ("/nothing", viewer.cookie)):
        answer = viewer.ask(path, Cookie=cookie)
        assert HEADERS.items() <= {name.lower(): value for name, value in answer.headers.items()}.items()
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_it_listens_on_this_machine_alone(viewer):
    listening = [
        c.laddr.ip for c in psutil.Process(viewer.process.pid).net_connections() if c.status == "LISTEN"
    ]
    assert listening == ["127.0.0.1"]


def test_each_viewer_has_a_token_of_its_own(viewer, runs_directory):
    with viewing(runs_directory / "a-run") as other:
        assert other.url.partition("token=")[2] != viewer.url.partition("token=")[2]
        assert other.ask("/api/runs", Cookie=viewer.cookie).status == 401
