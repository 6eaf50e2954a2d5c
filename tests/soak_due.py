"""Runs the parts of `make soak` whose last line in tests/soak_log.md is oldest: `make soak-due MINUTES=30`.

It starts no further part once the minutes are over. If a part fails it goes on, and its exit status is 1.
"""

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence

from pipelinerl.paths import ROOT

LOG = ROOT / "tests" / "soak_log.md"


def by_age(parts: Sequence[str], log: str) -> list[str]:
    """Returns the parts, those without a line in the log first, and those whose line is last at the end."""
    last = {}
    for number, line in enumerate(log.splitlines()):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 4:
            last[cells[4]] = number
    return sorted(parts, key=lambda part: last.get(part, -1))


def main(minutes: float, parts: Sequence[str]) -> int:
    """Runs parts until the minutes are over. Returns the exit status."""
    ends = time.monotonic() + 60 * minutes
    ran = []
    failed = []
    for part in by_age(parts, LOG.read_text()):
        if time.monotonic() >= ends:
            break
        ran.append(part)
        if subprocess.run(["make", part], cwd=ROOT).returncode:
            failed.append(part)
    print("ran:", *(ran or ["no part"]))
    if failed:
        print("failed:", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="after which no part is begun (30)")
    parser.add_argument("parts", nargs="+", help="targets of make, for example soak-viewer")
    options = parser.parse_args()
    if not 0 < options.minutes < math.inf:
        parser.error(f"the minutes are a positive number, not {options.minutes}")
    sys.exit(main(options.minutes, options.parts))
