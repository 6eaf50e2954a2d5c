"""Checks on a GPU what tests on a CPU cannot reach, part by part, and writes a table (docs/gpu.md).

    python -m benchmarks.gpu_check [--part NAME ...] [--out FILE]    # on a machine with a GPU
    python -m benchmarks.gpu_check --dry                             # the same path on a CPU, tiny sizes

Parts run one after the other, each for 9 minutes at most; one that fails does not stop the others. The exit
status is 1 if a part failed, and 2 if there is no GPU to check anything on.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.arguments import refuse
from benchmarks.gpu_check.machine import title, versions
from benchmarks.gpu_check.parts import PARTS
from benchmarks.gpu_check.running import run_part
from benchmarks.gpu_check.table import HEAD, make_writable, record, row
from contracts.support.command_line import command_parser


def main(arguments: Sequence[str] | None = None, parts: Mapping[str, str] = PARTS) -> int:
    """Runs the parts that the command line names, or all. Returns the exit status."""
    parser = command_parser("benchmarks.gpu_check", __doc__)
    parser.add_argument("--part", action="append", choices=list(parts), help="may be repeated; default: all")
    parser.add_argument("--dry", action="store_true", help="the same path on a CPU, with tiny sizes")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check.md"), help="file of the table")
    options = parser.parse_args(arguments)
    if not options.dry and not torch.cuda.is_available():
        print("torch sees no GPU here; --dry runs the same path on a CPU", file=sys.stderr)
        return 2
    try:
        make_writable(options.out)
    except OSError as error:
        refuse(parser, f"--out must be a file that can be written: {error}")
    heading = title(options.dry)
    print(f"{heading}\n{versions()}\n\n{HEAD}", end="", flush=True)
    failed = False
    for part in options.part or parts:
        outcome = run_part(part, parts[part], options.dry)
        record(options.out, heading, versions(), outcome)
        print(row(outcome), flush=True)
        failed = failed or outcome.state == "fail"
    print(f"\nwritten to {options.out}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
