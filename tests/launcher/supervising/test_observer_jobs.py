"""What observers may do to a run: nothing. With real processes that observe nothing."""

import os
import signal
import time
from pathlib import Path

import pytest

from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.launcher.supervising import observer_jobs
from pipelinerl.launcher.supervising.observer_jobs import ObserverJobs
from pipelinerl.observers import Observer
from tests.pipeline.runs import wait_for


class Own(Observer):
    """An observer that is the given command."""

    def __init__(self, name: str, *command: str, with_run: tuple[str, ...] = ()):
        self.name = name
        self.with_run = with_run
        self._command = command

    def command(self, run_dir: Path) -> tuple[str, ...]:
        return self._command


def jobs(run_dir: Path, **lines: str) -> ObserverJobs:
    """Starts a line of shell for each observer."""
    return started(run_dir, [Own(name, "/bin/sh", "-c", line) for name, line in lines.items()])


def started(run_dir: Path, observers: list[Observer]) -> ObserverJobs:
    observing = ObserverJobs(observers, run_dir)
    observing.start()
    return observing


def updated_until(observers: ObserverJobs, condition) -> None:
    def met() -> bool:
        observers.update(time.monotonic())
        return condition()

    wait_for(met)


def test_one_that_is_killed_begins_again_three_times_and_then_one_warning_names_its_command(tmp_path, capsys):
    command = ("/bin/sh", "-c", f"echo $1 >> {tmp_path}/given; kill -9 $$", "sh")
    observers = started(tmp_path, [Own("viewer", *command, with_run=("--end-with-run",))])
    updated_until(observers, lambda: not observers.update(time.monotonic()))
    observers.finish()
    observers.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"warning: viewer was killed by signal {signal.SIGKILL:d}" in line
    assert "the run does not need it, and this command writes the rest: python -c " in line
    assert "--end-with-run" not in line
    assert (tmp_path / "given").read_text() == "--end-with-run\n" * 4


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_one_that_does_not_finish_is_ended_with_a_warning_that_names_its_command(
    tmp_path, capsys, monkeypatch, is_interrupted
):
    monkeypatch.setattr(observer_jobs, "HURRIED_S" if is_interrupted else "FINISH_S", 0.3)
    observers = jobs(tmp_path, slow=f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    if is_interrupted:
        observers.hurry()
    observers.finish()
    observers.close()
    line = capsys.readouterr().err
    assert line.startswith("launch.py: warning: slow has not finished within 0.3 s of the run's end")
    assert line.count("\n") == 1 and "this command writes the rest: python -c" in line
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_one_that_cannot_be_started_is_a_warning(tmp_path, capsys):
    (tmp_path / "logs").write_text("no directory")
    observers = jobs(tmp_path, one="exit 0")
    assert not observers.update(time.monotonic())
    observers.finish()
    observers.close()
    assert "warning: one cannot be started: " in capsys.readouterr().err


def test_one_that_ended_well_too_early_is_begun_again_to_write_the_rest(tmp_path, capsys):
    observers = jobs(tmp_path, one=f"echo x >> {tmp_path}/starts; test -e {tmp_path}/trackers/ended")
    wait_for(lambda: (tmp_path / "starts").exists())
    updated_until(observers, lambda: observers.update(time.monotonic()))  # its restart waits for its time
    observers.finish()
    observers.close()
    assert (tmp_path / "starts").read_text().count("x") >= 2
    assert capsys.readouterr().err == ""


def test_they_are_not_given_the_token_of_the_servers(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "a-secret-token")
    observers = jobs(tmp_path, one=f"env > {tmp_path}/env")
    observers.finish()
    observers.close()
    assert "a-secret-token" not in (tmp_path / "env").read_text()
