"""A job that is forked from the launcher is what the same command is as a process."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch  # noqa: F401, for the forked jobs to have it

from pipelinerl.launcher.executors.base import Ended, Process, ResourceRequest
from pipelinerl.launcher.executors.forked_job import can_be_forked
from pipelinerl.launcher.executors.local import LocalExecutor
from pipelinerl.paths import ROOT
from tests.pipeline.runs import processes_of, wait_for

COMMAND = (sys.executable, "-m", "tests.launcher.executors.described")
OWN = {"PYTHONPATH": f"{ROOT}:/of/ones/own", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2", "OWN": "é"}
ENDS = ("status", "message", "error", "signal", "interrupt", "thread")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that runs the program as a job, and returns its status and its output.

    Other tests of this process may have changed its path, and torch its hook for exceptions.
    """
    monkeypatch.chdir(ROOT)
    new = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.path, sep=':')"], stdout=-1, text=True
    )
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry in new.stdout.strip().split(":")])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    executor = LocalExecutor()
    executor.request([ResourceRequest("job", "job", "job")])
    log = tmp_path / "logs" / "job.log"

    def run(argument: str, forked: bool) -> tuple[int, str]:
        monkeypatch.setattr(threading, "active_count", lambda: 1)
        log.unlink(missing_ok=True)
        executor.start("job", Process((*COMMAND, argument), OWN, log, may_be_forked=forked))
        wait_for(lambda: isinstance(executor.poll()["job"], Ended))
        return executor.poll()["job"].status, log.read_text()

    yield run
    executor.close()


def test_a_forked_job_finds_what_a_command_finds(run, tmp_path):
    with open(tmp_path / "a file of the launcher", "w"):
        _, forked = run("describe", forked=True)
        _, command = run("describe", forked=False)
    assert json.loads(forked) == json.loads(command)


def test_two_forked_jobs_draw_other_numbers(run):
    (_, one), (_, other) = run("draw", forked=True), run("draw", forked=True)
    assert not {*one.split()} & {*other.split()}


@pytest.mark.parametrize("how", ENDS)
def test_a_forked_job_ends_as_a_command_does(how, run):
    status, output = run(how, forked=True)
    expected, printed = run(how, forked=False)
    assert status == expected
    assert output.splitlines()[-2:] == printed.splitlines()[-2:]


def started(executor: LocalExecutor, directory: Path) -> None:
    """Starts a job that has a child in a session of its own, and ends with 5 if it is asked to."""
    executor.request([ResourceRequest("job", "job", "job")])
    own = OWN | {"OWN": str(directory)}
    executor.start("job", Process((*COMMAND, "asked"), own, directory / "job.log", may_be_forked=True))


def test_a_forked_job_that_is_ended_before_its_guard_is_there_is_asked_to_end(tmp_path, monkeypatch):
    """Its child, in a session of its own, ends too."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    executor = LocalExecutor()
    started(executor, tmp_path)
    executor.end(["job"])
    wait_for(lambda: isinstance(executor.poll()["job"], Ended))
    assert executor.poll()["job"].status in (5, -signal.SIGTERM)  # as soon as it can handle the signal
    assert processes_of(tmp_path) == []
    executor.close()


def test_nothing_of_a_forked_job_outlives_an_owner_that_is_killed_before_the_order(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    owner = os.fork()
    if owner == 0:
        monkeypatch.setattr(json, "dumps", lambda _: killed_beside(tmp_path))
        started(LocalExecutor(), tmp_path)
    assert os.waitpid(owner, 0)[1] == signal.SIGKILL
    wait_for(lambda: processes_of(tmp_path) == [])


def killed_beside(directory: Path) -> None:
    """Kills this process, instead of writing an order, once the job has its child."""
    wait_for(lambda: len(processes_of(directory)) >= 2)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_not_forked(monkeypatch):
    job = Process(COMMAND, {}, Path("log"), may_be_forked=True)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert can_be_forked(job, {"CUDA_VISIBLE_DEVICES": ""})
    assert not can_be_forked(job, {"CUDA_VISIBLE_DEVICES": "0"})
    assert not can_be_forked(replace(job, may_be_forked=False), {})
    assert not can_be_forked(replace(job, command=("/bin/sh", "-c", "true")), {})
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not can_be_forked(job, {})
