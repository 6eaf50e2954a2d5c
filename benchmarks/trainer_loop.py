"""What the trainer's processes cost a run: CPU seconds per rollout, and the shares of their time.

python -m benchmarks.trainer_loop [--runs N] [--against DIRECTORY] [key=value ...]

Runs with these settings are made in turn by this checkout and by another one, `--against`. Everything up to
the first step is left out. CPU seconds are those of all ranks, shares those of rank 0. Printed are each run,
and a table of medians with the lowest and the highest value.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.arguments import checkout, composed, of_checkout, positive_int
from benchmarks.run_processes import jobs_of
from contracts.support.command_line import command_parser
from pipelinerl.config import load_config
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.paths import ROOT

SAMPLE_S = 0.1
SPANS = ("probe", "wait", "learn", "optimizer", "publish")
Result = dict[str, float]


def main() -> None:
    parser = command_parser("benchmarks.trainer_loop", __doc__)
    parser.add_argument("--runs", type=positive_int, default=3, help="of each checkout")
    parser.add_argument("--against", type=checkout, help="another checkout")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    composed(parser, options.settings)
    checkouts = {"this": ROOT, **({"other": options.against} if options.against else {})}
    found: dict[str, list[Result]] = {name: [] for name in checkouts}
    for number in range(options.runs):
        names = list(checkouts) if number % 2 else list(checkouts)[::-1]
        for name in names:
            found[name].append(measured(checkouts[name], options.settings))
            print(name, {column: round(value, 2) for column, value in found[name][-1].items()}, flush=True)
    print(table(found))


def measured(directory: Path, settings: list[str]) -> Result:
    """Runs the checkout. Returns its CPU milliseconds per rollout, and its shares in percent."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        samples = cpu_samples(run, started(directory, run, settings))
        steps = [line for line in read_metrics(metrics_path(run, "trainer")) if line.get("step_s")]
        rollouts = (len(steps) - 1) * load_config(run).batch_size
        times, cpu_s = np.array(samples).T
        first, last = np.interp([steps[0]["time"], steps[-1]["time"]], times, cpu_s)
        whole = sum(line["step_s"] for line in steps[1:])
        shares = {f"{n} %": 100 * sum(line[f"{n}_s"] for line in steps[1:]) / whole for n in SPANS}
        return {"CPU ms / rollout": 1000 * float(last - first) / rollouts, **shares}


def started(directory: Path, run: Path, settings: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "launch.py", f"run_dir={run}", *settings],
        cwd=directory,
        env=of_checkout(directory),
        stdout=subprocess.DEVNULL,
    )


def cpu_samples(run: Path, launcher: subprocess.Popen) -> list[tuple[float, float]]:
    """Returns pairs of unix seconds and CPU seconds of the trainer's ranks, until the run has ended."""
    ranks: list[psutil.Process] = []
    samples = []
    while launcher.poll() is None:
        time.sleep(SAMPLE_S)
        if not metrics_path(run, "trainer").exists():
            continue
        ranks = ranks or [
            psutil.Process(p) for name, p in jobs_of(run).items() if name.startswith("trainer-")
        ]
        try:
            samples.append((time.time(), sum(cpu_seconds(rank) for rank in ranks)))
        except psutil.NoSuchProcess:
            break
    if launcher.wait():
        sys.exit(f"{launcher.args} ended with status {launcher.returncode}")
    return samples


def cpu_seconds(process: psutil.Process) -> float:
    """Returns the CPU seconds of the process so far."""
    times = process.cpu_times()
    return times.user + times.system


def table(found: dict[str, list[Result]]) -> str:
    """Returns the results as a table, one row per checkout."""
    columns = list(next(iter(found.values()))[0])
    lines = [f"| checkout | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, results in found.items():
        cells = [cell([result[column] for result in results]) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(values: list[float]) -> str:
    """Returns the median, with the lowest and the highest value."""
    return f"{np.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()
