"""A full disk is named in one line, whatever the launcher writes there. The disks are real, and small."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelinerl.errors import PlanError
from pipelinerl.launcher.run_directory import failure_message, naming_full_disk
from pipelinerl.paths import ROOT
from pipelinerl.report.summary import report
from pipelinerl.streams.files import FileStreams
from tests.limits import HANG_S
from tests.pipeline.runs import MINIATURE

SMALL = "mount -t tmpfs -o size=2m none {disk} && cd {root} && "
FILL = "dd if=/dev/zero of={disk}/much bs=4k count={pages} 2>/dev/null; "
LAUNCH = f"{sys.executable} launch.py run_dir={{disk}}/run {' '.join(MINIATURE)} max_steps=100000"


def on_a_small_disk(tmp_path: Path, script: str, pages: int = 1000) -> subprocess.CompletedProcess[str]:
    """Runs a script of shell where `disk` is a disk of 2 MiB, which no other process sees."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (SMALL + script).format(disk=disk, root=ROOT, pages=pages)
    command = ["unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c", script]
    if subprocess.run([*command[:-1], "true"], check=False).returncode:
        pytest.skip("this user may not mount a disk of its own")
    return subprocess.run(command, text=True, capture_output=True, timeout=HANG_S, check=False)


def test_a_run_on_a_full_disk_is_refused_in_one_line(tmp_path):
    done = on_a_small_disk(tmp_path, FILL + LAUNCH)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"launch.py: the disk of {tmp_path}/disk/run") and "is full" in line


@pytest.mark.engines
def test_a_run_whose_disk_becomes_full_has_no_report_and_says_so(tmp_path):
    steps = "{disk}/run/metrics/trainer.jsonl"
    until_full = f"until test -s {steps}; do sleep 0.1; done; {FILL}"
    done = on_a_small_disk(tmp_path, f"{LAUNCH} & {until_full} kill -TERM $!; wait $!")
    assert done.returncode in (1, 130)
    assert f"no report: the disk of {tmp_path}/disk/run" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_summary_that_cannot_be_written_is_printed(tmp_path, capsys):
    (tmp_path / f".summary.json.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(PlanError, match=f"the disk of {tmp_path} is full"), naming_full_disk(tmp_path):
        report(tmp_path, FileStreams(tmp_path / "streams"))
    assert "optimizer_steps" in capsys.readouterr().out


def test_another_error_of_the_disk_stays_as_it_is(tmp_path):
    with pytest.raises(IsADirectoryError), naming_full_disk(tmp_path):
        tmp_path.read_bytes()
    assert failure_message(PlanError("no such\nmodel"), tmp_path) == "no such model"
