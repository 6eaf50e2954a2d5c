"""A whole run with a tracker and a viewer: both are killed, serve again, and change nothing of the run."""

import json
import os
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.run_processes import jobs_of
from tests.extensions.viewer.held import as_tensorboard_has_them, in_tensorboard, lines_of
from tests.forked import Forked
from tests.pipeline.runs import assert_accounted, finish, resume, start, wait_for

SAID = "launch.py: view the run at "


def start_held(folder: Path) -> Forked:
    """Starts a run whose trainer waits in its first publication until its file `held` is removed."""
    (folder / "hold").touch()
    held = ("trainer._target_=tests.held_trainer.HeldTrainer", f"+trainer.hold={folder / 'hold'}")
    observed = ("observers=[viewer,tensorboard]", "max_steps=3")
    launcher = start(folder / "run", *observed, *held, f"+trainer.held={folder / 'held'}")
    wait_for((folder / "held").exists)
    return launcher


def kill(run: Path, observer: str) -> None:
    """Kills an observer, and waits for the next one."""
    pid = wait_for(lambda: jobs_of(run).get(observer))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: jobs_of(run).get(observer) not in (None, pid))


def serves(url: str) -> bool:
    address = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((address.hostname, address.port)) == 0


def assert_tracked(run_dir: Path) -> None:
    """Asserts that the tracker has each number of the metrics once."""
    expected = as_tensorboard_has_them(lines_of(run_dir))
    assert {name.partition("/")[0] for name, *_ in expected} >= {"trainer", "actor", "preprocessor"}
    assert in_tensorboard(run_dir) == expected


def test_observers_that_are_killed_go_on_and_so_they_do_when_the_run_is_resumed(tmp_path):
    run = tmp_path / "run"
    launcher = start_held(tmp_path)
    file = run / "view" / "url"
    wait_for(file.exists)
    assert file.stat().st_mode & 0o077 == 0  # the token in it is for the user alone
    url = file.read_text().strip()
    assert serves(url)
    kill(run, "viewer")
    kill(run, "tracker-tensorboard")
    wait_for(lambda: serves(url))
    (tmp_path / "held").unlink()
    status, err = finish(launcher)
    assert (status, "warning" in err) == (0, False), err
    assert [line.removeprefix(SAID) for line in err.splitlines() if line.startswith(SAID)] == [url]
    assert "viewer" not in jobs_of(run) and not serves(url)
    assert_tracked(run)
    assert_accounted(run)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["optimizer_steps"], summary["accounting_errors"]) == (3, [])

    before = len(in_tensorboard(run))
    status, err = finish(resume(run, "max_steps=5"))
    assert (status, "warning" in err) == (0, False), err
    assert len(in_tensorboard(run)) > before
    assert_tracked(run)
