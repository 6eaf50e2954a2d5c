"""The demo on every engine, one run after the other, and a table of the results: `make grid`.

python -m benchmarks.grid [--out runs/grid] [key=value ...]     # more settings, for every run
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from pipelinerl.jobs import ROOT
from pipelinerl.metrics import metrics_path, read_metrics

RUNS = {
    "transformers": ["inference=transformers"],
    "vllm": ["inference=vllm"],
    "transformers + vllm": ["inference=mixed", "world.servers=2"],
}
HEAD = "| engine | held-out success | tokens/s | publish, median | paused, median | in flight | lost |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/grid"))
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    rows = [HEAD, "|---|---|---|---|---|---|---|"]
    for name, settings in RUNS.items():
        run_dir = args.out / name.replace(" + ", "-")
        command = [sys.executable, "launch.py", f"run_dir={run_dir}", *settings, *args.settings]
        subprocess.run(command, cwd=ROOT, check=True)
        rows.append(f"| {name} | {result(ROOT / run_dir)} |")
    print("\n".join(rows))


def result(run_dir: Path) -> str:
    summary = json.loads((run_dir / "summary.json").read_text())
    published = [m for m in read_metrics(metrics_path(run_dir, "trainer")) if "publish_seconds" in m]
    seconds, paused = (
        statistics.median(m[name] for m in published) for name in ("publish_seconds", "publish_paused_s")
    )
    in_flight = f"{summary['updates_while_generating']} of {summary['weight_updates'] - 1}"
    return (
        f"{summary['heldout_success_start']:.2f} → {summary['heldout_success_end']:.2f} "
        f"| {summary['generation_tokens_per_s']:.0f} | {seconds:.3f} s | {paused:.3f} s "
        f"| {in_flight} | {summary['rollouts_lost']}"
    )


if __name__ == "__main__":
    main()
