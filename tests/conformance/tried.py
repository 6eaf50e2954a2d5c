"""The table of docs/conformance.md: how many adapters the tests try the kit on, by what they break.

`python -m tests.conformance.tried --write` writes it anew.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.conformance.broken_servers import MUTANTS as SERVERS
from tests.conformance.odd_servers import ODD
from tests.conformance.trainer_mutants import MUTANTS as TRAINERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
BEGIN = "<!-- written by python -m tests.conformance.tried --write -->"
END = "<!-- end of what is written -->"


def table() -> str:
    """Returns the table of the page."""
    servers = [mutant.own for name, mutant in SERVERS.items() if name != "Correct"]
    lines = [
        "| adapters | how many break what |",
        "|---|---|",
        f"| {len(servers)} broken servers | {_counts(servers)} |",
        f"| {len(TRAINERS)} broken trainers | {_counts(mutant.breaks for mutant in TRAINERS)} |",
        f"| {len(ODD)} odd servers | nothing |",
    ]
    return "\n".join([*lines, ""])


def written() -> str:
    """Returns the page with the table as it has to be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{rest.partition(END)[2]}"


def _counts(codes: Iterable[str]) -> str:
    """Returns how often each code is there, in the order of codes: `G1 19, G2 22`."""
    counts = Counter(codes)
    ordered = sorted(counts, key=lambda code: (code[0], int(code[1:])))
    return ", ".join(f"{code} {counts[code]}" for code in ordered)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(written())
    else:
        print(table())
