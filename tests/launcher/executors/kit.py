"""What every executor does, whatever it starts jobs on: the tests of `test_local.py` and `test_ray.py`.

A file that imports all of it gives a fixture `bench`.
"""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import (
    Ended,
    Executor,
    JobState,
    Placed,
    Process,
    ResourceRequest,
    Running,
)
from pipelinerl.paths import ROOT
from tests.pipeline.runs import processes_of, wait_for

ORPHAN = "setsid sleep 1000 & sleep 1000 & echo started; "  # the first child is in a session of its own


@dataclass
class Bench:
    """An executor, and the directory and kind of a test."""

    executor: Executor
    directory: Path  # of this test; processes that it starts have it in their environment
    kind: str  # of the executor, for owner.py

    @property
    def log(self) -> Path:
        return self.directory / "logs" / "job.log"

    def state(self) -> JobState:
        return self.executor.poll()["job"]

    def wait(self, *kinds: type) -> JobState:
        """Waits until the state of the job is one of these kinds."""
        return wait_for(lambda: isinstance(state := self.state(), kinds) and state)

    def place(self, port: int | None = None, gpus: int = 0, cpus: float = 0.5) -> Placed:
        self.executor.request([ResourceRequest("job", "job", "job", cpus, gpus, port)])
        return self.wait(Placed)

    def start(self, script: str, grace_s: float = 10, whole: bool = False, stopped: bool = False) -> None:
        own = {"OWN": str(self.directory)}
        command = ("/bin/sh", "-c", script) if script != "env" else ("/usr/bin/env",)
        self.executor.start("job", Process(command, own, self.log, whole, grace_s, stopped))

    def run(self, script: str, **options: object) -> int:
        self.start(script, **options)
        return self.wait(Ended).status

    def says(self, text: str) -> None:
        wait_for(lambda: self.log.exists() and text in self.log.read_text())

    def gone(self) -> None:
        wait_for(lambda: not processes_of(self.directory))


def test_how_a_job_ends_is_told_and_its_place_is_used_again(bench: Bench):
    bench.place()
    assert bench.run("echo first") == 0
    assert bench.run("echo second >&2; exit 3") == 3
    assert bench.run("kill -KILL $$") == -signal.SIGKILL
    assert bench.log.read_text() == "first\nsecond\n"
    assert bench.log.parent.stat().st_mode & 0o777 == 0o700


def test_a_log_that_is_full_begins_anew_and_no_line_is_lost(bench: Bench):
    """Of 30 kB in files of 10 kB, the last two are kept; the job's last output is still in its pipe."""
    bench.place()
    bench.log.parent.mkdir()
    bench.log.write_text("of an earlier process\n")
    script = "for i in $(seq 3000); do echo line $i; [ $i = 1000 ] && sleep 0.2; done; printf unfinished"
    process = Process(("/bin/sh", "-c", script), {"OWN": str(bench.directory)}, bench.log, log_bytes=10_000)
    bench.executor.start("job", process)
    assert bench.wait(Ended).status == 0
    before, now = (bench.log.with_name(name).read_text() for name in ("job.log.1", "job.log"))
    printed = [f"line {number + 1}" for number in range(3000)]
    first = printed.index(before.splitlines()[0])
    assert (before + now).splitlines() == [*printed[first:], "unfinished"]
    assert before.endswith("\n") and len(before) >= 10_000 and now
    assert {path.name for path in bench.log.parent.iterdir()} == {"job.log", "job.log.1"}


def test_what_cannot_be_started_says_so_in_the_log(bench: Bench):
    bench.place()
    bench.executor.start("job", Process(("/nowhere/python",), {}, bench.log))
    assert bench.wait(Ended).status == 127
    assert "/nowhere/python" in bench.log.read_text()


def test_a_job_has_its_nodes_environment_and_its_own(bench: Bench):
    bench.place()
    bench.run("env")
    variables = dict(line.split("=", 1) for line in bench.log.read_text().splitlines())
    assert variables["OF_THE_NODE"] == "here"
    assert variables["OWN"] == str(bench.directory)
    withheld = (
        "RAY_",
        "RANK",
        "WORLD_SIZE",
        "MASTER_",
        "PIPELINERL_REDIS_URL",
        "SPT_NOENV",
        "PYTHONBREAKPOINT",
    )
    assert not [name for name in variables if name.startswith(withheld)]
    bench.log.unlink()
    bench.run("env", whole=True)
    assert bench.log.read_text().splitlines() == [f"OWN={bench.directory}"]


def test_a_job_is_asked_to_end_before_it_is_killed(bench: Bench):
    bench.place()
    bench.start("trap 'echo asked; exit 5' TERM; echo started; while :; do sleep 0.05; done")
    bench.says("started")
    bench.executor.end(["job"])
    assert bench.wait(Ended).status == 5
    bench.start("trap '' TERM; echo deaf; while :; do sleep 0.05; done", grace_s=0.5)
    bench.says("deaf")
    bench.executor.end(["job"])
    assert bench.wait(Ended).status == -signal.SIGKILL


def test_a_job_that_is_ended_as_soon_as_it_is_started_ends(bench: Bench):
    bench.place()
    bench.start("sleep 1000")
    bench.executor.end(["job"])
    assert bench.wait(Ended).status == -signal.SIGTERM


def test_a_stopped_job_is_killed_where_it_is_wanted(bench: Bench):
    bench.place()
    bench.start("kill -STOP $$", stopped=True)
    assert bench.wait(Ended).status == -signal.SIGKILL


@pytest.mark.parametrize("how", ["ends by itself", "is ended", "is dropped"])
def test_nothing_that_a_job_started_outlives_it(bench: Bench, how: str):
    bench.place()
    bench.start(ORPHAN + ("exit 0" if how == "ends by itself" else "wait"))
    bench.says("started")
    if how == "is ended":
        bench.executor.end(["job"])
    if how == "is dropped":
        bench.executor.release(["job"])
        assert not processes_of(bench.directory)
    else:
        bench.wait(Ended)
        assert not processes_of(bench.directory)


def start_owner(bench: Bench, script: str) -> subprocess.Popen[bytes]:
    """Starts a launcher of this job, which a test kills."""
    command = [sys.executable, "-m", "tests.launcher.executors.owner", bench.kind, str(bench.log), script]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_nothing_outlives_an_owner_that_is_killed(bench: Bench):
    owner = start_owner(bench, ORPHAN + "wait")
    bench.says("started")
    assert len(processes_of(bench.directory)) >= 4
    owner.kill()
    owner.wait()
    bench.gone()


def test_a_port_is_kept_for_the_job_over_its_restarts(bench: Bench):
    placement = bench.place(port=0).placement

    def is_free() -> bool:
        with socket.socket() as other:
            try:
                other.bind((placement.address, placement.port))
            except OSError:
                return False
        return True

    listen = f"{sys.executable} -m http.server --bind {placement.address} {placement.port}"
    for _ in range(2):
        assert not is_free()
        bench.start(listen)
        bench.wait(Running)
        wait_for(lambda: _answers(placement.address, placement.port))
        bench.executor.end(["job"])
        bench.wait(Ended)
    bench.executor.release(["job"])
    wait_for(is_free)


def _answers(address: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


def test_gpus_are_given_and_taken_back(bench: Bench):
    for _ in range(2):
        assert sorted(bench.place(gpus=2).placement.gpus.split(",")) == ["4", "5"]
        bench.executor.release(["job"])
    assert bench.place(gpus=0).placement.gpus == ""
    bench.executor.release(["job"])
    with pytest.raises(PlanError, match="needs .*3"):
        bench.executor.request([ResourceRequest("job", "job", "job", 0.5, 3)])
    assert "job" not in bench.executor.poll()
