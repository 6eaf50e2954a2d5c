"""Complete miniature runs: the real launcher and processes, scripted engine, trainer and domain."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.ledger import IN_FLIGHT, ledger_of
from benchmarks.run_processes import alive, processes_of
from contracts.records import Record, Resumed, ServerJoined
from pipelinerl.paths import ROOT
from pipelinerl.streams.events import resumptions
from pipelinerl.streams.of_run import recorded_streams
from tests.forked import Forked
from tests.limits import HANG_S

MINIATURE = (
    "inference=scripted",
    "trainer=scripted",
    "~domain",
    "+domain._target_=tests.scripted_domain.ScriptedDomain",
    "sampling.max_tokens=4",
    "batch_size=32",
    "group_size=4",
    "eval.problems=16",
    "eval.concurrency=16",
    "stop_at=null",
)
LOOK_S = 0.05
SEED = int(os.environ.get("SEED", "0"))  # of `make soak`


def start(run_dir: Path, *overrides: str) -> Forked:
    return Forked("launch.py", f"run_dir={run_dir}", *MINIATURE, *overrides)


def resume(run_dir: Path, *overrides: str) -> Forked:
    return Forked("launch.py", f"run_dir={run_dir}", "resume=true", *overrides)


def launch(run_dir: Path, *overrides: str, directory: Path = ROOT) -> Forked:
    """Starts a launcher in this working directory, without what `MINIATURE` sets."""
    return Forked(str(ROOT / "launch.py"), f"run_dir={run_dir}", *overrides, directory=directory)


def launch_command(
    run_dir: Path, *overrides: str, environment: dict[str, str] | None = None, directory: Path = ROOT
) -> subprocess.Popen[str]:
    """Starts a launcher as users do, by an interpreter of its own.

    `environment`: variables in addition to the tests' own. `directory`: the working directory.
    """
    return subprocess.Popen(
        [sys.executable, str(ROOT / "launch.py"), f"run_dir={run_dir}", *overrides],
        cwd=directory,
        env=os.environ | (environment or {}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(launcher: subprocess.Popen[str] | Forked, within_s: float | None = HANG_S) -> tuple[int, str]:
    """Returns exit status and stderr. A launcher that does not end in time is a failure."""
    try:
        _, err = launcher.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        launcher.send_signal(signal.SIGINT)
        raise
    return launcher.returncode, err


def run_to_the_end(run_dir: Path, *overrides: str) -> dict:
    """Returns the summary of a run that must succeed."""
    status, err = finish(start(run_dir, *overrides))
    assert status == 0, err
    return json.loads((run_dir / "summary.json").read_text())


def records(run_dir: Path, *names: str) -> list[Record]:
    with recorded_streams(run_dir) as streams:
        return [entry.record for name in names for entry in streams.reader(name).read(timeout_s=0)]


def of_kind(run_dir: Path, name: str, kind: type[Record]) -> list[Record]:
    return [record for record in records(run_dir, name) if isinstance(record, kind)]


def resumptions_of(run_dir: Path) -> list[Resumed]:
    with recorded_streams(run_dir) as streams:
        return list(resumptions(streams))


def wait_for(condition: Callable[[], object]) -> object:
    """Looks at the condition until it is true, and returns what it was."""
    for _ in range(round(HANG_S / LOOK_S)):
        if found := condition():
            return found
        time.sleep(LOOK_S)
    raise AssertionError("waited too long")


def wait_for_record(run_dir: Path, name: str, kind: type[Record], count: int = 1) -> None:
    wait_for(lambda: len(of_kind(run_dir, name, kind)) >= count)


def job_pid(run_dir: Path, module: str) -> int:
    """Returns the process of a run whose command line names the module."""

    def find():
        for pid in processes_of(run_dir):
            command = Path(f"/proc/{pid}/cmdline").read_text()
            if module in command and "launch.py" not in command:
                return pid

    return wait_for(find)


def server_pids(run_dir: Path) -> list[int]:
    """Returns the servers of a run, from the launcher's events: their command lines do not name it."""
    urls = [record.url for record in of_kind(run_dir, "launcher_events", ServerJoined)]
    return [pid for url in urls if (pid := listener(url))]


def listener(url: str) -> int | None:
    """Returns the process of an inference server whose command line has the port of this URL."""
    port = url.rpartition(":")[2]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if f"--port {port}" in " ".join(words) and alive(int(entry.name)):
                    return int(entry.name)
    return None


def job_pid_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def assert_accounted(run_dir: Path, ended: bool = True) -> dict[str, set[int]]:
    """Returns the groups by outcome; none may be in flight if the run has ended by itself."""
    outcomes, errors = ledger_of(run_dir)
    assert errors == []
    assert not (ended and IN_FLIGHT in outcomes), f"{outcomes[IN_FLIGHT]} were lost"
    return outcomes
