"""Trackers hold each line of the metrics files once, whatever happens to the process that writes them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from extensions.viewer import track
from extensions.viewer.progress import ProgressFile
from pipelinerl.paths import ROOT
from tests.extensions.viewer.held import (
    as_tensorboard_has_them,
    in_tensorboard,
    in_trackio,
    in_wandb,
    lines_of,
)
from tests.pipeline.runs import wait_for

TRACKERS = ("wandb", "trackio", "tensorboard")
CONFIG = {"seed": 7, "domain": {"_target_": "tests.scripted_domain.ScriptedDomain"}}


class Run:
    """A run directory that grows by the hands of a test."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.trackio = directory.parent / "trackio"
        self._written = 0
        (directory / "metrics").mkdir(parents=True)
        (directory / "config.yaml").write_text(json.dumps(CONFIG))

    def grow(self, *steps: int) -> None:
        """Adds a line of each of three processes for each step, which share names and have nulls."""
        for step in steps:
            self._written += 1
            common = {"time": 1.7e9 + self._written / 4, "step": step}
            self._append("trainer", {**common, "loss": 0.1 * self._written, "ess": None, "lag_max": 4})
            self._append("actor", {**common, "loss": 1e-12 * self._written, "in_flight": self._written})
            self._append("judging", {**common, "busy_share": None})

    def _append(self, process: str, line: dict) -> None:
        with (self.directory / "metrics" / f"{process}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def end(self) -> None:
        (self.directory / "summary.json").write_text("{}")

    def resume(self) -> None:
        (self.directory / "summary.json").unlink()

    def followed(self, *options: str, names: tuple[str, ...] = TRACKERS) -> subprocess.Popen[str]:
        own = {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "TRACKIO_DIR": str(self.trackio)}
        return subprocess.Popen(
            [sys.executable, "-m", "extensions.viewer.track", str(self.directory), "--to", *names, *options],
            cwd=ROOT,
            env=os.environ | own,
            text=True,
            stdout=subprocess.PIPE,
        )

    def follow_to_the_end(self, *options: str) -> str:
        """Returns what the command printed."""
        out, _ = self.followed(*options).communicate()
        return out

    def progress(self, name: str) -> Path:
        return self.directory / "trackers" / f"{name}.json"

    def written(self) -> bool:
        """Whether the progress of every tracker has all lines that there are."""
        ends = {path.stem: path.stat().st_size for path in (self.directory / "metrics").iterdir()}
        paths = [self.progress(name) for name in TRACKERS]
        return all(path.exists() and json.loads(path.read_text())["offsets"] == ends for path in paths)

    def check(self) -> None:
        """Asserts that each tracker has each line once, and what it is told of the configuration."""
        lines = lines_of(self.directory)
        held, config = in_wandb(self.directory)
        assert held == lines
        assert config.items() >= CONFIG.items()
        held, config, runs = in_trackio(self.directory, self.trackio)
        assert runs == 1
        assert held == lines
        assert config.items() >= CONFIG.items()
        assert in_tensorboard(self.directory) == as_tensorboard_has_them(lines)


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "run")


def test_each_line_once_for_a_run_that_grows_and_a_follower_that_is_killed(run):
    run.grow(*range(5))
    follower = run.followed()
    wait_for(run.written)
    before = {name: run.progress(name).read_text() for name in TRACKERS}
    run.grow(*range(5, 12))
    wait_for(run.written)
    follower.send_signal(signal.SIGKILL)
    follower.wait()
    for name in TRACKERS:  # as if it had been killed before it saved them
        run.progress(name).write_text(before[name])
    run.grow(12, 13)
    follower = run.followed()
    wait_for(run.written)
    run.grow(14)
    run.end()
    assert follower.wait() == 0
    run.check()


def test_each_line_once_for_a_run_that_ends_resumes_and_ends(run):
    run.grow(*range(12))
    run.end()
    run.follow_to_the_end()
    run.resume()
    run.grow(9, 10, 11)  # the run went back to a checkpoint
    follower = run.followed()
    wait_for(run.written)
    follower.send_signal(signal.SIGKILL)
    follower.wait()
    run.grow(*range(12, 1500))  # more than one batch
    run.end()
    assert "tensorboard --logdir" in run.follow_to_the_end()
    files = {path: path.stat().st_mtime_ns for path in run.directory.rglob("*") if path.is_file()}
    run.follow_to_the_end()
    locks = {run.directory / "trackers" / f".{name}.lock" for name in TRACKERS}
    assert {p for p, changed in files.items() if p.stat().st_mtime_ns != changed} <= locks
    run.check()


def test_a_run_that_lives_is_written_as_far_as_it_is_on_demand_and_its_torn_line_later(run):
    run.grow(0, 1)
    path = run.directory / "metrics" / "trainer.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-9])
    assert track.main([str(run.directory), "--to", "tensorboard", "--once"]) == 0
    assert len(in_tensorboard(run.directory)) == 2 + 4
    path.write_text(whole)
    assert track.main([str(run.directory), "--to", "tensorboard", "--once"]) == 0
    assert in_tensorboard(run.directory) == as_tensorboard_has_them(lines_of(run.directory))


def test_trackio_on_a_network_s_file_system_takes_each_line_once(run, monkeypatch):
    monkeypatch.setenv("TRACKIO_STORAGE_MODE", "jsonl")
    run.grow(*range(4))
    for _ in range(2):
        assert run.followed("--once", names=("trackio",)).wait() == 0
        saved = json.loads(run.progress("trackio").read_text())
        run.progress("trackio").write_text(json.dumps(saved | {"offsets": {}, "is_closed": False}))
    held, config, runs = in_trackio(run.directory, run.trackio)
    assert (runs, config["seed"]) == (1, 7)
    assert held == lines_of(run.directory)


def test_it_ends_when_its_user_says_so_and_when_the_launcher_is_gone(run):
    run.grow(0)
    follower = run.followed(names=("tensorboard",))
    wait_for(lambda: run.progress("tensorboard").exists())
    follower.send_signal(signal.SIGINT)
    assert follower.wait() == 0
    lock = run.directory / "streams" / "launcher_events" / "writer.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    run.grow(1)
    assert run.followed(names=("tensorboard",)).wait() == 0
    assert in_tensorboard(run.directory) == as_tensorboard_has_them(lines_of(run.directory))


def test_what_is_no_run_and_what_another_writes_is_refused(run, tmp_path, capsys):
    assert track.main([str(tmp_path), "--to", "tensorboard"]) == 2
    assert capsys.readouterr().err == f"track: {tmp_path} holds no run (no config.yaml there)\n"
    held = ProgressFile(run.directory, "tensorboard")
    assert track.main([str(run.directory), "--to", "tensorboard"]) == 2
    said = f"track: process {os.getpid()} writes this run to tensorboard already; end it first\n"
    assert capsys.readouterr().err == said
    assert held.read().offsets == {}
