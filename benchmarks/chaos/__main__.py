"""Runs that are drawn from a seed, and faults in them; says what each fault did and what went wrong.

    python -m benchmarks.chaos --seed 0 --kills 20
    python -m benchmarks.chaos --seed 0 --kills 20 --pair real --out chaos.jsonl
    python -m benchmarks.chaos --seed 0 --kills 20 --executor ray
    python -m benchmarks.chaos --seed 0 --kills 20 --weights relay
    python -m benchmarks.chaos --seed 0 --kills 20 --schedule colocated

Exits with status 1 if anything went wrong. What a run with a failure left is in `--work`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.chaos.plan import Plan, draw_plan
from benchmarks.chaos.running import Result, run_plan
from benchmarks.chaos.saved import json_line
from benchmarks.chaos.table import faults_table, kinds_table
from contracts.support.command_line import command_parser


def main() -> int:
    args = arguments()
    work = args.work or Path(tempfile.mkdtemp(prefix="chaos-"))
    results = []
    for seed in range(args.seed, args.seed + args.runs):
        plan = draw_plan(
            seed, args.kills, args.pair, args.longest_stop_s, args.executor, args.weights, args.schedule
        )
        print(f"\nseed {seed}: {plan.shape}", flush=True)
        result = run_plan(plan, work / f"seed-{seed}", args.within_s)
        results.append(result)
        show(result, command_of(plan, args), work)
        if args.out:
            with args.out.open("a") as out:
                out.write(json_line(result) + "\n")
    print(f"\n{kinds_table(results)}")
    return 1 if any(result.failures for result in results) else 0


def arguments() -> argparse.Namespace:
    parser = command_parser("benchmarks.chaos", __doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="of this seed and the following")
    parser.add_argument("--kills", type=int, default=20, help="faults in each run")
    parser.add_argument(
        "--pair", choices=["scripted", "real", "agents"], default="scripted", help="engine and trainer"
    )
    parser.add_argument(
        "--executor", choices=["local", "ray"], default="local", help="ray: a cluster of its own"
    )
    parser.add_argument(
        "--weights", choices=["group", "relay", "shared"], default="group", help="relay: through two of them"
    )
    parser.add_argument(
        "--schedule", choices=["pipeline", "async", "conventional", "colocated"], help="by default drawn"
    )
    parser.add_argument("--longest-stop-s", type=float, default=90.0, help="of a process that is stopped")
    parser.add_argument("--within-s", type=float, default=180.0, help="longest wait for a recovery")
    parser.add_argument("--work", type=Path, help="where the runs are; a new directory by default")
    parser.add_argument("--out", type=Path, help="file to which a line of JSON is added for each run")
    return parser.parse_args()


def command_of(plan: Plan, args: argparse.Namespace) -> str:
    """Returns the command that repeats this plan."""
    return (
        f"python -m benchmarks.chaos --seed {plan.seed} --kills {args.kills} --pair {args.pair} "
        f"--executor {args.executor} --weights {args.weights} "
        f"{f'--schedule {args.schedule} ' if args.schedule else ''}"
        f"--longest-stop-s {args.longest_stop_s:g} --within-s {args.within_s:g}"
    )


def show(result: Result, command: str, work: Path) -> None:
    """Prints the table of a run, its failures, and how to reproduce them."""
    print(faults_table(result))
    print(f"{result.steps} steps, {result.seconds:.0f} s")
    for failure in result.failures:
        print(f"FAILED: seed {result.plan.seed}: {failure}")
    if result.failures:
        print(f"again: {command}\nsee {work / f'seed-{result.plan.seed}'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
