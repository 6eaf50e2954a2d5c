"""The demo on islands, beside one run with all their rollouts, and a table.

    python -m benchmarks.islands [--seeds 3] [--only one,mean-10] [--out runs/islands]

It needs the extra `islands`. Every case has 60 updates and about as many rollouts an update. Success is that
of 1,000 held-out problems, of which none is in training. `--only` takes names of the first column.
"""

from pathlib import Path

from benchmarks.islands.runs import CASES, HEAD, row, run
from contracts.support.command_line import command_parser


def main() -> None:
    parser = command_parser("benchmarks.islands", __doc__)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("runs/islands"))
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - CASES.keys():
        parser.error(f"there is no case {', '.join(sorted(unknown))}: choose from {', '.join(CASES)}")
    ran = {name: [] for name in names}
    for seed in range(args.seeds):
        for name in names:
            ran[name].append(run(CASES[name], seed, args.out / f"{name}-{seed}"))
            print(f"# {name}, seed {seed}: {ran[name][-1]}", flush=True)
    print(HEAD)
    for name in names:
        print(row(name, ran[name], ran.get("one")))


if __name__ == "__main__":
    main()
