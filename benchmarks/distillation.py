"""How many rollouts on-policy distillation needs on the demo, beside the RL that made its teacher.

    python -m benchmarks.distillation [--out runs/distillation] [--seeds 0,1,2]

For each seed, the demo's RL makes the teacher, and a student begins where RL began. Rollouts are those that
were begun before the first evaluation of 0.95 or more ended. Groups that filters dropped count too: they were
sampled. It prints a table.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from contracts.records import Evaluated, Started
from contracts.support.command_line import command_parser
from pipelinerl.paths import ROOT
from pipelinerl.streams.events import valid_results
from pipelinerl.streams.of_run import recorded_streams

GOAL = 0.95
HEAD = ("seed", "RL", "its rollouts", "distillation", "its rollouts", "share of RL's")


class Reached(NamedTuple):
    success: str  # held out, at the start, at the goal, and at the end
    rollouts: (
        int | None
    )  # begun before the end of the first evaluation that reaches the goal; None if none does


def run(run_dir: Path, *settings: str) -> Reached:
    """Runs the launcher, and returns when the run reached the goal."""
    launcher = [sys.executable, "launch.py", *settings, f"run_dir={run_dir}"]
    subprocess.run(launcher, cwd=ROOT, check=True)
    with recorded_streams(run_dir) as streams:
        results: list[Evaluated] = valid_results(streams)
        begun = [e.record for e in streams.reader("actor_events").read(timeout_s=0)]
    started = [event for event in begun if isinstance(event, Started)]
    first, last = results[0].success, results[-1].success
    reaching = next((result for result in results if result.success >= GOAL), None)
    if reaching is None:
        return Reached(f"{first:.3f} → {last:.3f}", None)
    rollouts = sum(event.rollouts for event in started if event.version < reaching.last_version)
    said = f"{first:.3f} → {reaching.success:.3f} (v{reaching.version}) → {last:.3f}"
    return Reached(said, rollouts)


def row(seed: str, out: Path) -> list[str]:
    rl = run(out / "rl", f"seed={seed}")
    teacher = f"+reference.arguments.model={out / 'rl' / 'checkpoints' / 'final'}"
    student = run(out / "student", "+exp=distillation", teacher, f"seed={seed}")
    share = f"{student.rollouts / rl.rollouts:.2f}" if student.rollouts and rl.rollouts else "–"
    return [seed, rl.success, f"{rl.rollouts or '–'}", student.success, f"{student.rollouts or '–'}", share]


def main() -> None:
    parser = command_parser("benchmarks.distillation", __doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/distillation"))
    parser.add_argument("--seeds", default="0,1,2", help="separated by commas")
    options = parser.parse_args()
    out = (options.out / time.strftime("%Y%m%d-%H%M%S")).resolve()
    rows = [row(seed, out / seed) for seed in options.seeds.split(",")]
    for cells in (HEAD, ["---"] * len(HEAD), *rows):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
