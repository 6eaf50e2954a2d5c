"""Keeps results of runs with faults as lines of JSON, and prints the table over many of them.

python -m benchmarks.chaos.saved runs/chaos/*.json
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.chaos.plan import Fault, Plan, Shape
from benchmarks.chaos.recovery import Recovery
from benchmarks.chaos.running import Outcome, Result
from benchmarks.chaos.table import kinds_table
from contracts.support.command_line import command_parser


def json_line(result: Result) -> str:
    """Returns a run's result and its faults as one line of JSON."""
    return json.dumps(asdict(result) | {"failures": result.failures})


def result_of(line: str) -> Result:
    """Returns the result that `json_line` encoded."""
    fields = json.loads(line)
    plan = fields["plan"]
    faults = tuple(Fault(**fault) for fault in plan["faults"])
    return Result(
        Plan(plan["seed"], Shape(**plan["shape"]), faults),
        [_outcome(outcome) for outcome in fields["outcomes"]],
        fields["errors"],
        fields["seconds"],
        fields["steps"],
    )


def _outcome(fields: Mapping[str, Any]) -> Outcome:
    fault, recovery = Fault(**fields["fault"]), Recovery(**fields["recovery"])
    return Outcome(fault, fields["at_s"], recovery, fields["skipped"], fields.get("phase", ""))


def main() -> None:
    """Prints the table of all runs in the files, their number, and every failure with its seed."""
    parser = command_parser("benchmarks.chaos.saved", __doc__)
    parser.add_argument("files", type=Path, nargs="+")
    lines = [line for path in parser.parse_args().files for line in path.read_text().splitlines()]
    results = sorted(map(result_of, lines), key=lambda result: result.plan.seed)
    print(kinds_table(results))
    done = sum(not outcome.skipped for result in results for outcome in result.outcomes)
    failures = [f"seed {result.plan.seed}: {failure}" for result in results for failure in result.failures]
    print(f"\n{done} faults in {len(results)} runs, seeds {[result.plan.seed for result in results]}")
    print(*(failures or ["no failure"]), sep="\n")


if __name__ == "__main__":
    main()
