"""A launcher that is asked to end: while it imports, before it has started anything, and by its terminal."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelinerl.launcher.terminal import INTERRUPTED
from pipelinerl.paths import ROOT
from tests.limits import HANG_S
from tests.pipeline.runs import MINIATURE, launch_command, processes_of, wait_for

LAUNCH = (sys.executable, str(ROOT / "launch.py"))


def handles(launcher: subprocess.Popen, number: int) -> bool:
    """Returns whether a process has a handler of its own for a signal. One started by nohup never has."""
    assert launcher.poll() is None
    status = Path(f"/proc/{launcher.pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (number - 1) & 1)


def imports_torch(launcher: subprocess.Popen) -> bool:
    """Returns whether a process has begun to load torch, which takes the longest of its imports."""
    assert launcher.poll() is None
    return "libtorch_cpu" in Path(f"/proc/{launcher.pid}/maps").read_text()


@pytest.mark.parametrize(
    ("number", "later", "is_read"),
    [(signal.SIGINT, False, True), (signal.SIGTERM, True, False), (signal.SIGHUP, True, True)],
)
def test_a_launcher_that_imports_ends_without_a_traceback(tmp_path, number, later, is_read):
    """Also one whose output nobody reads any more."""
    launcher = launch_command(tmp_path / "run", *MINIATURE)
    if not is_read:
        launcher.stdout.close()
    wait_for(lambda: handles(launcher, signal.SIGHUP))
    wait_for(lambda: not later or imports_torch(launcher))
    launcher.send_signal(number)
    _, err = launcher.communicate(timeout=HANG_S)
    assert launcher.returncode == INTERRUPTED
    assert "Traceback" not in err
    assert later or "interrupted" in err  # later the run has begun, and its report says so
    assert processes_of(tmp_path) == []


def test_a_job_that_a_script_starts_with_an_ampersand_ends_by_ctrl_c(tmp_path):
    """The shell of a script has such a job ignore SIGINT."""
    ignoring = f"trap '' INT; exec {' '.join(LAUNCH)} run_dir={tmp_path}/run {' '.join(MINIATURE)}"
    launcher = subprocess.Popen(["/bin/sh", "-c", ignoring], cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_for(lambda: handles(launcher, signal.SIGHUP))
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(HANG_S) == INTERRUPTED


def test_what_nohup_ignores_stays_ignored(tmp_path):
    ignoring = (
        f"trap '' HUP INT; exec {' '.join(LAUNCH)} run_dir={tmp_path}/run {' '.join(MINIATURE)} plan=true"
    )
    launcher = subprocess.Popen(["/bin/sh", "-c", ignoring], cwd=ROOT, stdout=subprocess.PIPE)
    wait_for(lambda: handles(launcher, signal.SIGTERM))
    launcher.send_signal(signal.SIGHUP)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(HANG_S) == 0
