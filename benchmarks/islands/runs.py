"""Runs the demo on one island or several, each a launcher with a run directory of its own."""

import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean

from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.paths import ROOT
from tests.extensions.islands.processes import LighthouseProcess
from tests.ports import free_port

STEPS = 60
PROBLEMS = 1000
GROUP = 16
GROUPS = 16  # of all islands together
SETTINGS = (
    f"max_steps={STEPS}",
    "stop_at=null",
    f"eval.every={STEPS}",
    f"eval.problems={PROBLEMS}",
    "checkpoint.every=null",
)
HEAD = (
    "| case | held-out success: mean (lowest) | to one run's | runs whose islands end with one model | "
    "rounds made of those tried | time in rounds | bytes: times fewer than float32 every update |\n"
    "|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Case:
    """islands: how many. Without `every` it is one run without islands."""

    islands: int = 1
    every: int | None = None
    outer: tuple[float, float] = (1.0, 0.0)  # learning rate and momentum

    def settings(self, number: int, seed: int, lighthouse: str) -> list[str]:
        """Returns the settings of one of the islands."""
        batch = GROUPS // self.islands * GROUP
        own = [*SETTINGS, f"batch_size={batch}", f"seed={self.islands * seed + number}"]
        if self.every is None:
            return own
        rate, momentum = self.outer
        return [
            "+exp=islands_demo",
            *own,
            f"trainer.island=island-{number}",
            f"trainer.lighthouse={lighthouse}",
            f"trainer.every={self.every}",
            f"trainer.outer_lr={rate}",
            f"trainer.outer_momentum={momentum}",
        ]


NESTEROV = (0.7, 0.9)
CASES = {
    "one": Case(),
    "mean-10": Case(2, 10),
    "mean-20": Case(2, 20),
    "mean-30": Case(2, 30),
    "nesterov-10": Case(2, 10, NESTEROV),
    "nesterov-30": Case(2, 30, NESTEROV),
    "three-mean-10": Case(3, 10),
}


@dataclass(frozen=True)
class Ran:
    """success: of the first island at the end. share: of its time. fewer: times. same: models at the end."""

    success: float
    same: bool
    rounds: int
    tried: int
    share: float
    fewer: float


def run(case: Case, seed: int, out: Path) -> Ran:
    """Runs all islands to their ends. Raises RuntimeError if one fails; its files are then kept."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as rounds:
        lighthouse = LighthouseProcess(free_port(), join_s=120, dead_s=5)
        try:
            numbers = range(case.islands)
            launched = [_launch(case, number, seed, out, lighthouse, rounds) for number in numbers]
            ends = [process.wait() for process in launched]
        finally:
            lighthouse.kill()
    if any(ends):
        raise RuntimeError(f"an island ended with a status of {ends}: see {out}")
    return _read(case, out)


def _launch(
    case: Case, number: int, seed: int, out: Path, lighthouse: LighthouseProcess, rounds: str
) -> subprocess.Popen[bytes]:
    settings = [*case.settings(number, seed, lighthouse.url), f"run_dir={out / str(number)}"]
    if case.every:
        settings.append(f"trainer.directory={rounds}")
    with (out / f"{number}.console").open("wb") as console:
        return subprocess.Popen(
            [sys.executable, "launch.py", *settings], cwd=ROOT, stdout=console, stderr=console
        )


def _read(case: Case, out: Path) -> Ran:
    runs = [out / str(number) for number in range(case.islands)]
    models = {_digest(run) for run in runs}
    summary = json.loads((runs[0] / "summary.json").read_text())
    steps = [line for line in read_metrics(metrics_path(runs[0], "trainer")) if "grad_norm" in line]
    tried = [line for line in steps if "outer_round" in line]
    seconds = sum(line["outer_seconds"] for line in tried)
    sent = sum(line["outer_bytes"] for line in tried)
    elements = _elements(runs[0])
    synchronous = len(steps) * 2 * (case.islands - 1) / case.islands * 4 * elements
    return Ran(
        summary["heldout_success_end"],
        len(models) == 1,
        sum(line["outer_alone"] == 0 and line["outer_islands"] == case.islands for line in tried),
        len(tried),
        seconds / sum(line["step_s"] for line in steps),
        synchronous / sent if sent else math.nan,
    )


def _digest(run: Path) -> str:
    return sha256((run / "checkpoints" / "final" / "model.safetensors").read_bytes()).hexdigest()


def _elements(run: Path) -> int:
    """Returns the number of float32 weights, by the header of the exported model."""
    with (run / "checkpoints" / "final" / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def row(name: str, ran: Sequence[Ran], one: Sequence[Ran] | None) -> str:
    success = fmean(each.success for each in ran)
    lowest = min(each.success for each in ran)
    gap = f"{success - fmean(each.success for each in one):+.3f}" if one else "–"
    learnt = f"| `{name}` | {success:.3f} ({lowest:.3f}) | {gap} "
    if not ran[0].tried:
        return f"{learnt}| – | – | – | – |"
    same = sum(each.same for each in ran)
    rounds = f"{sum(each.rounds for each in ran)} of {sum(each.tried for each in ran)}"
    share = fmean(each.share for each in ran)
    return (
        f"{learnt}| {same} of {len(ran)} | {rounds} | {share:.1%} | {fmean(each.fewer for each in ran):.0f} |"
    )
