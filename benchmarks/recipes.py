"""Every recipe of docs/recipes.md on the demo, one run after the other, and a table: `make recipes`.

python -m benchmarks.recipes [--out runs/recipes] [--seeds 0] [--only grpo,dapo] [key=value ...]

The table goes to standard output, and into docs/recipes.md between its two marks. Lengths are sampled tokens
of held-out answers.
"""

import json
import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from statistics import fmean

from contracts.records import Rollout
from contracts.support.command_line import command_parser
from pipelinerl.paths import ROOT
from pipelinerl.streams.events import recorded
from pipelinerl.streams.of_run import recorded_streams

# Names of files in conf/exp.
RECIPES = [
    "cispo",
    "dapo",
    "dr_grpo",
    "grpo",
    "gspo",
    "intellect2",
    "intellect3",
    "kimi_k15",
    "lite_ppo",
    "scalerl",
]
CONTROLS = {"kimi_k15": ["rewards=[]"]}  # also run: the recipe without what should shorten responses
HEAD = ["recipe", "success", "tokens", "lag"]
DOCUMENT = ROOT / "docs" / "recipes.md"
TABLE = re.compile(r"(<!-- results -->\n).*(<!-- end -->)", re.DOTALL)


def main() -> None:
    parser = command_parser("benchmarks.recipes", __doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--only", default=",".join(RECIPES), help="recipes, separated by commas")
    parser.add_argument("settings", nargs="*", help="for every run")
    args = parser.parse_args()
    rows, out = [HEAD, ["---"] * len(HEAD)], args.out / time.strftime("%Y%m%d-%H%M%S")
    for recipe in args.only.split(","):
        for without, seed in product(["", *CONTROLS.get(recipe, [])], args.seeds.split(",")):
            run_dir, what = out / f"{len(rows) - 1}-{recipe}", f"+exp={recipe} {without}".split()
            what += [f"seed={seed}"] if seed != "0" else []  # the default
            settings = [*what, f"run_dir={run_dir}", *args.settings]
            subprocess.run([sys.executable, "launch.py", *settings], cwd=ROOT, check=True)
            rows.append([f"`{' '.join(what)}`", *result(ROOT / run_dir)])
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    print(table, end="")
    if args.only == ",".join(RECIPES):
        DOCUMENT.write_text(TABLE.sub(rf"\g<1>\n{table}\n\g<2>", DOCUMENT.read_text()))


def result(run_dir: Path) -> list[str]:
    summary = json.loads((run_dir / "summary.json").read_text())
    start, end = evaluations(run_dir)
    return [
        f"{summary['heldout_success_start']:.2f} → {summary['heldout_success_end']:.2f}",
        f"{mean_length(start):.1f} → {mean_length(end):.1f}",
        f"{summary['lag_mean']:.2f}",
    ]


def evaluations(run_dir: Path) -> tuple[list[Rollout], list[Rollout]]:
    """Returns the rollouts of the first and of the last evaluation."""
    by_version: dict[int, list[Rollout]] = {}
    with recorded_streams(run_dir) as streams:
        for rollout in recorded(streams, "eval_rollouts"):
            version = int(rollout.rollout_id.split("-")[1])
            by_version.setdefault(version, []).append(rollout)
    return by_version[min(by_version)], by_version[max(by_version)]


def mean_length(rollouts: list[Rollout]) -> float:
    return fmean(rollout.sampled_tokens for rollout in rollouts)


if __name__ == "__main__":
    main()
