"""A whole run with `view=true`: the URL is printed, and the run is the same when the viewer is killed."""

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

from tests.pipeline.held_run import HeldRun
from tests.pipeline.runs import assert_accounted, wait_for

SAID = "launch.py: view the run at "


def url_of(run: HeldRun) -> str:
    """Waits until the viewer has written its URL, and returns it."""
    file = run.directory / "view" / "url"
    wait_for(file.exists)
    assert file.stat().st_mode & 0o077 == 0  # the token in it is for the user alone
    return file.read_text().strip()


def serves(url: str) -> bool:
    address = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((address.hostname, address.port)) == 0


def urls_said(err: str) -> list[str]:
    return [line.removeprefix(SAID) for line in err.splitlines() if line.startswith(SAID)]


def assert_complete(run_dir: Path) -> None:
    """Asserts that the run has made its steps, and that its summary knows what became of each group."""
    assert_accounted(run_dir)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["optimizer_steps"], summary["rollouts_lost"]) == (3, 0)
    assert summary["accounting_errors"] == []


def test_a_viewer_that_is_killed_serves_again_at_the_url_that_was_printed_and_ends_with_the_run(tmp_path):
    run = HeldRun(tmp_path, "viewer", "view=true")
    url = url_of(run)
    assert serves(url)
    first = run.kill_observer()
    assert wait_for(run.observer_pid) != first
    wait_for(lambda: serves(url))
    err = run.finish()
    assert urls_said(err) == [url] and "warning" not in err
    assert not run.observer_pid() and not serves(url)
    assert_complete(run.directory)
