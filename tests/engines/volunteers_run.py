"""A run over a gateway with volunteers, each a process with a server of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.run_processes import alive, jobs_of
from extensions.volunteers.gateway.database import Database
from extensions.volunteers.gateway.registry import Registry
from pipelinerl.paths import ROOT
from tests.ports import free_port

LOOK_S = 0.1  # between two looks at a run
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


class VolunteersRun:
    """A run in `out`, and the volunteers that take part. settings: further ones of the run."""

    def __init__(self, out: Path, steps: int, *settings: str, port: int | None = None):
        self.out = out
        self.state = out / "state"
        self._port = port or free_port()
        self._steps = steps
        self._settings = settings
        self._volunteers: dict[str, subprocess.Popen] = {}
        self.launch = self.start()

    def start(self, *more: str) -> subprocess.Popen:
        command = [sys.executable, "launch.py", "inference=volunteers", "weights=relay", "stop_at=null"]
        command += [f"run_dir={self.out / 'run'}", f"max_steps={self._steps}", "weights.keep=100"]
        command += [*self._settings, *more]
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
def volunteers_run(out: Path, steps: int, *settings: str, port: int | None = None) -> Iterator[VolunteersRun]:
    run = VolunteersRun(out, steps, *settings, port=port)
    try:
        run.until((run.state / "gateway.json").is_file)
        yield run
    finally:
        run.close()
