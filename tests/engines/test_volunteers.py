"""Runs over a gateway with volunteers, processes with servers of their own, which are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.run_processes import alive, jobs_of
from benchmarks.volunteers.redraw import redraw
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.database import Database
from extensions.volunteers.gateway.registry import Registry
from pipelinerl.paths import ROOT
from tests.ports import free_port

pytestmark = pytest.mark.engines
LOOK_S = 0.1  # between two looks at a run
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


class VolunteersRun:
    """A run in `out`, and the volunteers that take part."""

    def __init__(self, out: Path, steps: int):
        self.out = out
        self.state = out / "state"
        self._steps = steps
        self._port = free_port()
        self._volunteers: dict[str, subprocess.Popen] = {}
        self.launch = self.start()

    def start(self, *more: str) -> subprocess.Popen:
        command = [sys.executable, "launch.py", "inference=volunteers", "weights=relay", "stop_at=null"]
        command += [f"run_dir={self.out / 'run'}", f"max_steps={self._steps}", "weights.keep=100", *more]
        command += [
            f"inference.arguments.state={self.state}",
            f"inference.arguments.public_port={self._port}",
        ]
        with (self.out / "launch.log").open("a") as log:
            return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log)

    def join(self, name: str) -> None:
        """Starts a volunteer; one of an earlier name goes on in its directory, without a link."""
        directory = self.out / name
        command = [sys.executable, "-m", "extensions.volunteers"]
        link = []
        if not directory.is_dir():
            directory.mkdir()
            invite = [*command, "invite", "--state", str(self.state), "--label", name]
            link = [subprocess.check_output(invite, cwd=ROOT, text=True).strip()]
        with (self.out / f"{name}.log").open("a") as log:
            self._volunteers[name] = subprocess.Popen(
                [*command, "join", *link, "--directory", str(directory), "--room", "64"],
                cwd=ROOT,
                env=ENVIRONMENT,
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        self._volunteers[name].kill()
        self._volunteers[name].wait()

    def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            assert self.launch.poll() is None, (self.out / "launch.log").read_text()[-2000:]
            time.sleep(LOOK_S)

    def until_worked(self, *names: str) -> None:
        """Waits until each of these volunteers has delivered one more task."""
        registry = Registry(Database(self.state, create=False))

        def tasks() -> dict[str, int]:
            return {each.label: each.tasks for each in registry.every()}

        before = tasks()
        self.until(lambda: all(tasks().get(name, 0) > before.get(name, 0) for name in names))
        registry.database.close()

    def log(self, job: str) -> str:
        return (self.out / "run" / "logs" / f"{job}.log").read_text()

    def gateway(self) -> int | None:
        pid = jobs_of(self.out / "run").get("server-0")
        return pid if pid and alive(pid) else None

    def close(self) -> None:
        for volunteer in self._volunteers.values():
            if volunteer.poll() is None:
                volunteer.send_signal(signal.SIGINT)
        for volunteer in self._volunteers.values():
            volunteer.wait()
        if self.launch.poll() is None:
            self.launch.send_signal(signal.SIGINT)
            self.launch.wait()


@contextmanager
def volunteers_run(out: Path, steps: int) -> Iterator[VolunteersRun]:
    run = VolunteersRun(out, steps)
    try:
        run.until((run.state / "gateway.json").is_file)
        yield run
    finally:
        run.close()


def test_gateway_volunteers_and_launcher_are_killed_and_what_was_accepted_is_right(tmp_path):
    with volunteers_run(tmp_path, steps=10) as run:
        for name in ("ana", "ben"):
            run.join(name)
        run.until_worked("ana", "ben")
        run.kill("ana")
        run.until_worked("ben")
        run.kill("ben")
        run.until(lambda: "it waits for somebody who samples" in run.log("actor"))
        for name in ("ana", "ben"):
            run.join(name)
        run.until_worked("ana", "ben")
        os.kill(run.gateway(), signal.SIGKILL)
        run.until_worked("ana", "ben")  # they come back by themselves
        run.launch.kill()
        run.launch.wait()
        while run.gateway():
            time.sleep(LOOK_S)
        run.launch = run.start("resume=true")
        run.until_worked("ana", "ben")
        assert run.launch.wait() == 0, (tmp_path / "launch.log").read_text()[-2000:]
        database = Database(run.state, create=False)
        assert ledger.verify(database) > 10
        assert {(each.state, each.recent_strikes) for each in Registry(database).every()} == {("active", 0)}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["accounting_errors"], summary["rollouts_lost"]) == ([], 0)
    assert (summary["optimizer_steps"], summary["rollouts_failed"]) == (10, {})
    alike, other, _ = redraw(tmp_path / "run", database)
    assert other == 0
    assert alike > 1000
