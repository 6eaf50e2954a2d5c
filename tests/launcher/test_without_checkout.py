"""What is installed from a wheel has no `conf/`; commands that need it say so in one line."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_command_without_conf_is_refused_in_one_line(tmp_path):
    for package in ("contracts", "pipelinerl"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pipelinerl.demo_model", "sums"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert f"there is no {tmp_path / 'conf'}" in last
    assert "Traceback" not in done.stderr
