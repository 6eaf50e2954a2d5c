"""The run `+exp=smollm2` on one GPU: server and trainer are both on it, and learn as on a CPU.

Weights go through /dev/shm, because NCCL refuses two ranks on one GPU. A dry run is three steps of the demo.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu_check.outcomes import FailedError, SkippedError
from benchmarks.gpu_check.servers import last_line
from extensions.real_model.maker import RealModel
from pipelinerl.errors import PlanError
from pipelinerl.paths import ROOT

RECIPE = ("+exp=smollm2", "world.gpus=1", "world.share_gpus=true", "weights=shared")
DRY = ("max_steps=3", "stop_at=null", "batch_size=32", "eval.problems=16")
SUCCESS = 0.9  # of held-out problems, at the end
GAP = 1e-3  # nats, at most, between server and trainer in float32


def check(dry: bool) -> list[str]:
    """Returns lines on the run. Raises FailedError if it does not learn, or its server strays."""
    if not dry:
        _make_model()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        began = time.monotonic()
        _launch([*(DRY if dry else RECIPE), f"run_dir={run_dir}"])
        seconds = time.monotonic() - began
        summary = json.loads((run_dir / "summary.json").read_text())
    lines = list(_lines(summary, seconds))
    learnt = dry or summary["heldout_success_end"] >= SUCCESS
    if not (learnt and summary["logprob_gap_max_abs"] <= GAP and summary["rollouts_lost"] == 0):
        raise FailedError(*lines, f"expected: success {SUCCESS}, a gap of {GAP} nats at most, none lost")
    return lines


def _make_model() -> None:
    """Raises SkippedError if the model is not here and cannot be made."""
    try:
        RealModel("smollm2").make()
    except PlanError as error:
        raise SkippedError(str(error)) from error


def _launch(settings: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "launch.py", *settings],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise FailedError(f"launch.py ended with status {done.returncode}: {last_line(done.stderr)}")


def _lines(summary: dict, seconds: float) -> list[str]:
    return [
        f"held-out success {summary['heldout_success_start']:.2f} to {summary['heldout_success_end']:.2f} "
        f"after {summary['optimizer_steps']} steps, in {seconds:.0f} s with loading",
        f"updates in flight {summary['updates_while_generating']}, gap {summary['logprob_gap_max_abs']:.1e} "
        f"nats at most, rollouts lost {summary['rollouts_lost']}",
    ]
