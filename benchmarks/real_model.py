"""The real model's tasks on each engine and trainer, one run after the other, and a table.

python -m benchmarks.real_model [--exp smollm2] [--seeds 0,1] [--only transformers,vllm] [key=value ...]

Each run is `launch.py +exp=smollm2`, with what its name says. Success is that of held-out problems, by one
sample at temperature 1. An answer of several numbers may be a guess: their share is beside it. Memory is the
most that the run's processes held at a time, without what they share counted twice.
"""

import json
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from statistics import fmean

import psutil

from benchmarks.arguments import names_of, new_directory, seeds
from benchmarks.recipes import evaluations
from contracts.records import Rollout
from contracts.support.command_line import command_parser
from pipelinerl.paths import ROOT

VARIANTS = {
    "transformers": [],
    "vllm": ["inference=vllm"],
    "sglang": ["inference=sglang"],
    "deepspeed": ["trainer=deepspeed"],
    "lora": ["trainer.lora={rank: 16, alpha: 32}", "optimizer.lr=4e-4"],
    "conventional": ["schedule=conventional"],
}
HEAD = ("run", "seed", "held-out success", "several numbers", "steps", "seconds", "generated tokens/s", "GiB")
LOOKS_S = 5.0  # between two looks at the memory


def main() -> None:
    """Runs the command."""
    parser = command_parser("benchmarks.real_model", __doc__)
    parser.add_argument("--exp", default="smollm2", help="the recipe")
    parser.add_argument("--seeds", type=seeds, default=[0], help="separated by commas")
    parser.add_argument("--only", type=names_of(VARIANTS), default=list(VARIANTS), help="variants")
    parser.add_argument("--out", type=Path, default=Path("runs/real-model"))
    parser.add_argument("settings", nargs="*", help="for every run")
    arguments = parser.parse_args()
    out = new_directory(parser, arguments.out)
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for name, seed in product(arguments.only, arguments.seeds):
        run_dir = out / f"{name}-{seed}"
        settings = [f"+exp={arguments.exp}", *VARIANTS[name], f"seed={seed}", f"run_dir={run_dir}"]
        most = _run([*settings, *arguments.settings])
        print(f"| {' | '.join((name, str(seed), *_result(run_dir), f'{most / 2**30:.1f}'))} |", flush=True)


def _run(settings: list[str]) -> int:
    """Runs launch.py, and returns the most bytes that its processes held. Ends this process if it fails."""
    process = psutil.Popen([sys.executable, "launch.py", *settings], cwd=ROOT, stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        most = max(most, _held(process))
        time.sleep(LOOKS_S)
    if process.returncode:
        sys.exit(f"launch.py {' '.join(settings)}: exit status {process.returncode}")
    return most


def _held(launcher: psutil.Process) -> int:
    held = 0
    for process in (launcher, *launcher.children(recursive=True)):
        try:
            held += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return held


def _result(run_dir: Path) -> list[str]:
    summary = json.loads((run_dir / "summary.json").read_text())
    shares = [_several(rollouts) for rollouts in evaluations(run_dir)]
    return [
        f"{summary['heldout_success_start']:.2f} → {summary['heldout_success_end']:.2f}",
        "–" if None in shares else "{:.0%} → {:.0%}".format(*shares),
        f"{summary['optimizer_steps']}",
        f"{summary['wall_s']:.0f}",
        f"{summary['generation_tokens_per_s']:.0f}",
    ]


def _several(rollouts: list[Rollout]) -> float | None:
    """Returns the share of the answers with more than one number, or None if numbers are not counted."""
    counts = [rollout.metrics["numbers"] for rollout in rollouts if "numbers" in rollout.metrics]
    return fmean(count > 1 for count in counts) if counts else None


if __name__ == "__main__":
    main()
