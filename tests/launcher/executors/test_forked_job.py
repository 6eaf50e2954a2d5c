"""A job that is forked from the launcher is what the same command is as a process."""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch  # noqa: F401, for the forked jobs to have it

from pipelinerl.launcher.executors import local
from pipelinerl.launcher.executors.base import Ended, Process, Want
from pipelinerl.launcher.executors.forked_job import can_be_forked
from pipelinerl.launcher.executors.local import LocalExecutor
from pipelinerl.paths import ROOT
from tests.pipeline.runs import wait_for

COMMAND = (sys.executable, "-m", "tests.launcher.executors.described")
OWN = {"PYTHONPATH": f"{ROOT}:/of/ones/own", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2", "OWN": "é"}
ENDS = ("status", "message", "error", "signal", "interrupt", "thread")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that runs the program as a job, and returns its status and its output."""
    monkeypatch.chdir(ROOT)
    executor = LocalExecutor()
    executor.ask([Want("job", "job", "job")])
    log = tmp_path / "logs" / "job.log"

    def run(argument: str, forked: bool) -> tuple[int, str]:
        monkeypatch.setattr(local, "can_be_forked", lambda *_: forked)
        log.unlink(missing_ok=True)
        executor.start("job", Process((*COMMAND, argument), OWN, log))
        wait_for(lambda: isinstance(executor.look()["job"], Ended))
        return executor.look()["job"].status, log.read_text()

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


def test_what_is_not_forked(monkeypatch):
    job = Process(COMMAND, {}, Path("log"))
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert can_be_forked(job, {"CUDA_VISIBLE_DEVICES": ""})
    assert not can_be_forked(job, {"CUDA_VISIBLE_DEVICES": "0"})
    assert not can_be_forked(replace(job, has_whole_environment=True), {})
    assert not can_be_forked(replace(job, command=("/bin/sh", "-c", "true")), {})
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not can_be_forked(job, {})
