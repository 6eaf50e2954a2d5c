"""The run `+exp=smollm2` on one GPU: server and trainer are side by side or in turns, and learn as on a CPU.

Weights go through /dev/shm, because NCCL refuses two ranks on one GPU. A dry run is three steps of the demo.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.gpu_check.outcomes import FailedError, SkippedError
from benchmarks.gpu_check.servers import last_line
from extensions.real_model.maker import RealModel
from pipelinerl.errors import PlanError
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.paths import ROOT

RECIPE = ("+exp=smollm2", "world.gpus=1", "world.share_gpus=true", "weights=shared")
DRY = ("weights=shared", "max_steps=3", "stop_at=null", "batch_size=32", "eval.problems=16")
SUCCESS = 0.9  # of held-out problems, at the end
GAP = 1e-3  # nats, at most, between server and trainer in float32


def check(dry: bool) -> list[str]:
    return _check(dry)


def in_turns(dry: bool) -> list[str]:
    return _check(dry, "schedule=colocated")


def _check(dry: bool, *more: str) -> list[str]:
    """Returns lines on the run. Raises FailedError if it does not learn, or its server strays."""
    if not dry:
        _make_model()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        began = time.monotonic()
        _launch([*(DRY if dry else RECIPE), *more, f"run_dir={run_dir}"])
        seconds = time.monotonic() - began
        summary = json.loads((run_dir / "summary.json").read_text())
        steps = [line for line in read_metrics(metrics_path(run_dir, "trainer")) if "step_s" in line]
    lines = [*_lines(summary, seconds), *_changes(steps)]
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


def _changes(steps: list[dict]) -> Iterator[str]:
    """Yields the median seconds of the changes, if server and trainer take turns."""
    seconds = {name: median(step[f"{name}_s"] for step in steps) for name in ("sleep", "onload", "offload")}
    if seconds["onload"]:
        yield "of a step: " + ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
