"""Runs a part in a process of its own, for so long and no longer."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu_check.outcomes import Outcome, read_outcome
from pipelinerl.paths import ROOT

LONGEST_S = 540.0  # of a part


def run_part(part: str, function: str, dry: bool, longest_s: float = LONGEST_S) -> Outcome:
    """Returns how the part ended: as it says itself, or that it ended without a word or not in time."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        result = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", "benchmarks.gpu_check.inside", part, function, str(result)]
        # A group of its own, which the servers that it starts belong to.
        process = subprocess.Popen(
            [*command, *(["--dry"] if dry else [])],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": folder},  # a checkpoint of a part that is ended is deleted too
            start_new_session=True,
        )
        try:
            status = process.wait(longest_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = time.monotonic() - began
        if status is None:
            return Outcome(part, "fail", seconds, [f"no end within {longest_s:g} s"])
        if not result.exists():
            return Outcome(part, "fail", seconds, [f"the part's process ended with status {status}"])
        return read_outcome(result)
