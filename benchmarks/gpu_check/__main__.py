"""Checks on a GPU what tests on a CPU cannot reach, part by part, and writes a table (docs/gpu.md).

    python -m benchmarks.gpu_check [--part NAME ...] [--out FILE]    # on a machine with a GPU
    python -m benchmarks.gpu_check --minutes 6                       # the parts that fit
    python -m benchmarks.gpu_check --dry                             # the same path on a CPU, tiny sizes

Parts run one after the other, each for 9 minutes at most; one that fails does not stop the others. The exit
status is 1 if a part failed, and 2 if there is no GPU to check anything on.

With --minutes, parts that no table of docs/gpu.md has come first. A part whose estimate exceeds the minutes
that remain is not begun, and one that still runs at their end is ended.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.arguments import positive_int, refuse
from benchmarks.gpu_check.machine import title, versions
from benchmarks.gpu_check.parts import PARTS, Part, unmeasured_first
from benchmarks.gpu_check.running import LONGEST_S, run_part
from benchmarks.gpu_check.table import make_writable, record, row, section
from contracts.support.command_line import command_parser
from pipelinerl.paths import ROOT

PAGE = ROOT / "docs" / "gpu.md"


def main(arguments: Sequence[str] | None = None, parts: Mapping[str, Part] = PARTS) -> int:
    """Runs the parts that the command line names, or all. Returns the exit status."""
    parser = command_parser("benchmarks.gpu_check", __doc__)
    parser.add_argument("--part", action="append", choices=list(parts), help="may be repeated; default: all")
    parser.add_argument("--dry", action="store_true", help="the same path on a CPU, with tiny sizes")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check.md"), help="file of the table")
    parser.add_argument(
        "--minutes", type=positive_int, default=math.inf, help="end after so long, with the parts that fit"
    )
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * options.minutes
    if not options.dry and not torch.cuda.is_available():
        print("torch sees no GPU here; --dry runs the same path on a CPU", file=sys.stderr)
        return 2
    try:
        make_writable(options.out)
    except OSError as error:
        refuse(parser, f"--out must be a file that can be written: {error}")
    heading = title(options.dry)
    outcomes = []
    for part in _names(options, parts):
        left_s = deadline - time.monotonic()
        if 60 * parts[part].minutes > left_s:
            print(f"{part}: not begun, because it takes {parts[part].minutes:g} minutes", flush=True)
            continue
        outcome = run_part(part, parts[part].function, options.dry, min(LONGEST_S, left_s))
        record(options.out, heading, versions(), outcome)
        print(f"{part}: {outcome.state} after {outcome.seconds:.0f} s", flush=True)
        outcomes.append(outcome)
    if not outcomes:
        print("nothing was checked: give more --minutes", file=sys.stderr)
        return 2
    print(f"\n{section(heading, versions(), [row(each) for each in outcomes])}\nwritten to {options.out}")
    return int(any(outcome.state == "fail" for outcome in outcomes))


def _names(options: argparse.Namespace, parts: Mapping[str, Part]) -> Sequence[str]:
    """Returns the parts that are to run, if time allows."""
    if options.part or options.minutes == math.inf:
        return options.part or list(parts)
    return unmeasured_first(parts, PAGE.read_text())


if __name__ == "__main__":
    sys.exit(main())
