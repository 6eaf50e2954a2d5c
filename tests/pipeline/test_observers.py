"""A whole run with a tracker and a viewer: both are killed, serve again, and change nothing of the run."""

import json
import os
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.run_processes import jobs_of
from tests.forked import Forked
from tests.pipeline.runs import assert_accounted, finish, resume, start, wait_for
from tests.view.held import as_tensorboard_has_them, in_tensorboard, lines_of

TRACKER = "tracker-tensorboard"
SAID = "launch.py: view the run at "


class HeldRun:
    """A run whose trainer waits in its first publication until it is let go."""

    def __init__(self, folder: Path):
        self.directory = folder / "run"
        self._held = folder / "held"
        (folder / "hold").touch()
        self._launcher: Forked = start(
            self.directory,
            "view=true",
            "trackers=[tensorboard]",
            "max_steps=3",
            "trainer._target_=tests.held_trainer.HeldTrainer",
            f"+trainer.hold={folder / 'hold'}",
            f"+trainer.held={self._held}",
        )
        wait_for(self._held.exists)

    def pid(self, observer: str) -> int | None:
        return jobs_of(self.directory).get(observer)

    def kill(self, observer: str) -> None:
        """Kills an observer, and waits for the next one."""
        pid = wait_for(lambda: self.pid(observer))
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self.pid(observer) not in (None, pid))

    def finish(self) -> str:
        """Returns what a run that must end well has said on stderr."""
        self._held.unlink()
        status, err = finish(self._launcher)
        assert status == 0, err
        return err


@pytest.fixture
def run(tmp_path: Path) -> HeldRun:
    return HeldRun(tmp_path)


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


def assert_tracked(run_dir: Path) -> None:
    """Asserts that the tracker has each number of the metrics once."""
    expected = as_tensorboard_has_them(lines_of(run_dir))
    assert {name.partition("/")[0] for name, *_ in expected} >= {"trainer", "actor", "preprocessor"}
    assert in_tensorboard(run_dir) == expected


def test_observers_that_are_killed_go_on_and_so_they_do_when_the_run_is_resumed(run):
    url = url_of(run)
    assert serves(url)
    run.kill("viewer")
    run.kill(TRACKER)
    wait_for(lambda: serves(url))  # at the URL that was printed
    err = run.finish()
    assert [line.removeprefix(SAID) for line in err.splitlines() if line.startswith(SAID)] == [url]
    assert "warning" not in err and not run.pid("viewer") and not serves(url)
    assert_tracked(run.directory)
    assert_accounted(run.directory)
    summary = json.loads((run.directory / "summary.json").read_text())
    assert (summary["optimizer_steps"], summary["accounting_errors"]) == (3, [])

    before = len(in_tensorboard(run.directory))
    status, err = finish(resume(run.directory, "max_steps=5"))
    assert (status, "warning" in err) == (0, False)
    assert len(in_tensorboard(run.directory)) > before
    assert_tracked(run.directory)
