"""The demo on every inference engine and every trainer, one run of 50 steps after the other, and a table of
the results: `make grid`.

python -m benchmarks.grid [--out runs/grid] [key=value ...]     # more settings, for every run
"""

import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

from contracts.support.command_line import command_parser
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.paths import ROOT

ENGINES = ("transformers", "vllm", "sglang")
TRAINERS = ("fsdp", "deepspeed")
STEPS = (
    "max_steps=50",
    "stop_at=null",
    "batch_size=128",
    "group_size=8",
    "eval.every=20",
)  # the same for every pair
MIXED = ("all_engines", "fsdp", "world.servers=3", "world.server_grace_s=300")  # none comes late
RUNS = [*itertools.product(ENGINES, TRAINERS), MIXED]


def main() -> None:
    parser = command_parser("benchmarks.grid", __doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/grid"))
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    rows: list[dict[str, str]] = []
    try:
        for inference, trainer, *more in RUNS:
            run_dir = args.out / f"{inference}-{trainer}"
            settings = [f"run_dir={run_dir}", f"inference={inference}", f"trainer={trainer}", *STEPS, *more]
            subprocess.run([sys.executable, "launch.py", *settings, *args.settings], cwd=ROOT, check=True)
            rows.append({"inference": inference, "trainer": trainer} | result(ROOT / run_dir))
    finally:
        show(rows)


def show(rows: list[dict[str, str]]) -> None:
    if rows:
        for cells in (rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows)):
            print(f"| {' | '.join(cells)} |")


def result(run_dir: Path) -> dict[str, str]:
    summary = json.loads((run_dir / "summary.json").read_text())
    published = [m for m in read_metrics(metrics_path(run_dir, "trainer")) if "publish_seconds" in m]
    seconds, paused = (
        statistics.median(m[name] for m in published) for name in ("publish_seconds", "publish_paused_s")
    )
    return {
        "held-out success": f"{summary['heldout_success_start']:.2f} → {summary['heldout_success_end']:.2f}",
        "tokens/s": f"{summary['generation_tokens_per_s']:.0f}",
        "publish, median": f"{seconds:.3f} s",
        "paused, median": f"{paused:.3f} s",
        "in flight": f"{summary['updates_while_generating']} of {summary['weight_updates'] - 1}",
        "rollouts lost": str(summary["rollouts_lost"]),
    }


if __name__ == "__main__":
    main()
